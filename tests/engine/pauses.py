"""Engines of small models whose steps pause behind a layer, with a clock that is set, and the bytes of a session."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from tests.engine.models import model_of
from tmmu.engine.engine import Engine
from tmmu.engine.session import Session

LAYER = {"GPT-2": "transformer.h.{}", "Llama": "model.layers.{}", "Bamba": "model.layers.{}"}


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Subject:
    """One model, an engine of it, and the path of its layers."""

    def __init__(self, name: str) -> None:
        self.name, self.model, self.time = name, model_of(name), Time()
        longest = 32 if name == "Bamba" else 96  # a step of many tokens is a long trace where state recurs
        self.engine = Engine(self.model, max_tokens=longest, max_batch=2, clock=self.time)

    def layer(self, index: int) -> str:
        return LAYER[self.name].format(index)

    @contextmanager
    def reader(self, tokens: list[int]) -> Iterator[Session]:
        """A session that has read some tokens."""
        with self.engine.open() as session:
            if tokens:
                session.prefill(tokens)
            yield session


def open_subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    """The body of a fixture whose parameter is the name of a model."""
    subject = Subject(request.param)
    with subject.engine:
        yield subject


def arena_of(session: Session) -> torch.Tensor:
    return session.engine.segments.slabs["data"].bytes(session.base, session.arena_bytes).clone()
