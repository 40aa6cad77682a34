"""Steps of engines, planned once in a process of the tests: most of what an engine costs is capture and planning.

A plan is a value of the model's configuration, the shape and the switches of torch. Two engines for which all of these
are equal have equal plans, so the second takes that of the first; steps are bound, and run, for each engine.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import pytest
import torch

from tmmu.cache.key_parts import SWITCH_PREFIXES
from tmmu.engine import engine
from tmmu.engine.capture.step import StepModel, probe
from tmmu.engine.steps import planned_steps, sizes
from tmmu.engine.steps.planned_steps import PlannedStep, Shape, plan_step
from tmmu.kernel_switches import current_switches

_MODELS: Final[dict[Any, StepModel]] = {}
_STEPS: Final[dict[Any, PlannedStep]] = {}


@contextmanager
def planned_once() -> Iterator[None]:
    """Block in which engines share what they learn and plan; inside of another one it changes nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "probe", probe_once)
        for module in (planned_steps, sizes):
            patch.setattr(module, "plan_step", plan_step_once)
        yield


def probe_once(config: Any, dtype: torch.dtype, *, dtypes: Mapping[str, torch.dtype], **options: Any) -> StepModel:
    """As ``probe``, of the configuration that it is called with."""
    key = (_text_of(config), dtype, _items(dtypes), _items(options), _settings())
    if key not in _MODELS:
        _MODELS[key] = probe(config, dtype, dtypes=dtypes, **options)
    return replace(_MODELS[key], config=config)


def plan_step_once(subject: StepModel, shape: Shape) -> PlannedStep:
    """As ``plan_step``, with constants of its own."""
    form = (subject.dtype, subject.device, subject.fuse, subject.geometry, subject.direct, subject.source)
    fields = (*form, _items(subject.dtypes))
    key = (_text_of(subject.config), fields, shape, _settings())
    if key not in _STEPS:
        _STEPS[key] = plan_step(subject, shape)
    planned = _STEPS[key]
    return replace(planned, constants={name: tensor.clone() for name, tensor in planned.constants.items()})


def _text_of(config: Any) -> str:
    """The whole of a configuration; a text, since it may change later."""
    return f"{type(config).__qualname__} {sorted(vars(config).items())}"


def _items(by_name: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(by_name.items()))


def _settings() -> tuple[Any, ...]:
    """What else a capture or a plan may depend on."""
    variables = sorted(f"{name}={os.environ[name]}" for name in os.environ if name.startswith(SWITCH_PREFIXES))
    return current_switches("cpu"), torch.get_num_threads(), tuple(variables)
