"""Scalers of gradients while a model is traced: the step that is planned is the one without overflow.

``torch.amp.GradScaler`` looks whether a gradient overflowed, and leaves the update out if so. A trace has no values;
the update is what a step holds at its most, so that a step which leaves it out needs no other bytes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from tmmu.passes.capture.replace import replace_attribute
from tmmu.torch_private import GRAD_SCALER_STEP


@dataclass(slots=True)
class ScaledSteps:
    """Updates that a scaler let pass without a look at their gradients."""

    count: int = 0


@contextmanager
def updates_without_overflow() -> Iterator[ScaledSteps]:
    """Block in which a scaler that is on takes every step of its optimizers, and tells how many."""
    scaled = ScaledSteps()

    def step(scaler: Any, optimizer: torch.optim.Optimizer, found: Any, *args: Any, **kwargs: Any) -> Any:
        del scaler, found
        scaled.count += 1
        return optimizer.step(*args, **kwargs)

    with replace_attribute(torch.amp.GradScaler, GRAD_SCALER_STEP, step):
        yield scaled
