"""Several stacks over one text: steps run at once, each session has the bits of one stack, and bytes are counted."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier, Event
from typing import Any

import pytest
import torch

from tests.engine.models import model_of, prompt_of
from tests.waiting import wait_for
from tmmu.engine.engine import Engine
from tmmu.engine.session import Session
from tmmu.errors import InvalidConfig, TmmuError, UnsupportedOp

SESSIONS = 4
STEPS = 6
LONG = 64
"""Tokens of a prompt that batch reads in pieces."""


@pytest.fixture(scope="module")
def model() -> Any:
    return model_of("Llama")


@pytest.fixture(scope="module")
def one(model: Any) -> Iterator[Engine]:
    with Engine(model, max_tokens=96, max_batch=1, max_sessions=SESSIONS) as engine:
        yield engine


@pytest.fixture(scope="module")
def two(model: Any) -> Iterator[Engine]:
    with Engine(model, max_tokens=96, max_batch=1, max_sessions=SESSIONS, stacks=2) as engine:
        assert engine.stacks == 2
        yield engine


def run_text(session: Session, number: int) -> list[torch.Tensor]:
    """The logits of a prompt and of the tokens behind it."""
    rows = [session.prefill(prompt_of(5 + number, seed=number))]
    for _ in range(STEPS):
        rows.append(session.decode(int(rows[-1].argmax())))
    return rows


@contextmanager
def step_that_waits(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Session, Event]]:
    """A session of which a step is under way in the first stack, until the event is set at the latest at the end."""
    runner, begun, gate = engine._stacks[0].runner, Event(), Event()
    original = runner.read_part

    def read_part(session: Session, tokens: Any) -> int:
        begun.set()
        assert gate.wait(60)
        return original(session, tokens)

    with engine.open(20) as session, ThreadPoolExecutor(1) as pool:
        with monkeypatch.context() as patch:
            patch.setattr(runner, "read_part", read_part)
            future = pool.submit(session.prefill, [1, 2, 3])
            assert begun.wait(60)
        try:
            yield session, gate
        finally:
            gate.set()
            failure = future.exception(60)
            assert failure is None or isinstance(failure, TmmuError)


def test_steps_run_at_once_and_every_session_has_the_bits_of_one_stack(
    one: Engine, two: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = Barrier(2)
    for stack in two._stacks:
        monkeypatch.setattr(stack.runner, "decode", meeting(together, stack.runner.decode))
    sessions = [two.open() for _ in range(SESSIONS)]
    with ThreadPoolExecutor(SESSIONS) as pool:
        texts = list(pool.map(run_text, sessions, range(SESSIONS)))
    for number, (session, rows) in enumerate(zip(sessions, texts, strict=True)):
        session.close()
        with one.open() as alone:
            expected = run_text(alone, number)
        assert all(row.equal(other) for row, other in zip(rows, expected, strict=True))
    assert all(stack.steps.hits for stack in two._stacks)
    assert two.bound_shapes == 2 * one.bound_shapes
    assert two.usage["text"] == one.usage["text"]  # weights are there once


def meeting(together: Barrier, decode: Callable[..., None]) -> Callable[..., None]:
    """A step that goes on, the first time, when one of another stack is under way too."""
    waits = [True]

    def run(*args: Any) -> None:
        if waits:
            waits.clear()
            together.wait(60)
        decode(*args)

    return run


def test_others_come_and_go_while_a_step_runs(two: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with step_that_waits(two, monkeypatch) as (busy, gate), ThreadPoolExecutor(1) as pool:
        with two.open(20) as other:
            assert other.prefill([4, 5]).shape == (two.vocabulary,)  # in the second stack
            closing = pool.submit(busy.close)
            assert other.decode(6).shape == (two.vocabulary,)
            assert busy.is_open, "its state is being written"
        gate.set()
        closing.result(60)
        assert not busy.is_open


def test_paused_step_goes_on_in_its_own_stack(one: Engine, two: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with one.open() as alone:
        expected = alone.prefill([7, 8, 9])
    with two.open() as session:
        with step_that_waits(two, monkeypatch):
            paused = session.run_until("model.layers.0", [7, 8, 9])
        assert paused.stack == 1
        with two.open() as other:
            other.prefill([1])  # in the first one
        assert paused.resume().equal(expected)


def test_part_that_has_yielded_goes_on_in_its_own_stack(
    one: Engine, two: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = prompt_of(LONG)
    with one.open() as alone:
        expected = alone.prefill(prompt)
    calls: list[int] = []
    monkeypatch.setattr(two.scheduler, "must_yield", lambda _: len(calls) < 2)
    for stack in two._stacks:
        monkeypatch.setattr(stack.pieces, "read", noting(calls, stack.number, stack.pieces.read))  # type: ignore[union-attr]
    with two.open(qos="batch") as session:
        with step_that_waits(two, monkeypatch):
            reading = two.submit(session, prompt)
            wait_for(lambda: calls)
        assert reading.result(60).equal(expected)
    assert set(calls) == {1}


def noting(calls: list[int], number: int, read: Callable[..., int]) -> Callable[..., int]:
    def run(*args: Any) -> int:
        calls.append(number)
        return read(*args)

    return run


def test_stacks_are_counted_and_as_many_as_fit(model: Any, one: Engine, two: Engine) -> None:
    stack, text = one.usage["stack"].capacity, one.usage["text"].capacity
    longest = one.geometry.arena_bytes(one.geometry.capacities_for(96, 0))
    assert two.usage["stack"].capacity == 2 * stack
    least = text + stack + longest
    for budget, stacks in ((least, 1), (least + stack - 1, 1), (least + stack, 2), (least + 9 * stack, 3)):
        with Engine(model, max_tokens=96, max_batch=1, budget=budget, stacks=3) as engine:
            assert engine.stacks == stacks
            assert engine.prefill_buckets == one.prefill_buckets
            assert sum(usage.capacity for usage in engine.usage.values()) <= budget


def test_what_is_no_number_of_stacks_is_refused(model: Any) -> None:
    for stacks in (0, 65, "2", 1.5):
        with pytest.raises(InvalidConfig, match="stacks"):
            Engine(model, max_tokens=64, max_batch=1, stacks=stacks)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="past one step at a time"):
        Engine(model, max_tokens=64, max_batch=1, stacks=2, ring="1GiB")


def test_switches_of_torch_are_those_of_the_model_while_several_stacks_run(two: Engine) -> None:
    with two.open() as session:
        torch.use_deterministic_algorithms(mode=True, warn_only=True)
        try:
            with pytest.raises(UnsupportedOp, match="other switches of torch"):
                session.prefill([1, 2])
        finally:
            torch.use_deterministic_algorithms(mode=False)
        assert session.prefill([1, 2]).shape == (two.vocabulary,)
