"""What looks like a step and runs nothing is refused, never planned as no bytes."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import tmmu
from tmmu.errors import CaptureFailed, InvalidConfig

X = torch.randn(4, 8)
MODEL = nn.Linear(8, 8)


def generator(x: torch.Tensor) -> Iterator[torch.Tensor]:
    yield MODEL(x)


async def coroutine(x: torch.Tensor) -> Any:
    return MODEL(x)


@pytest.mark.parametrize("step", [generator, coroutine])
@pytest.mark.parametrize("call", [tmmu.plan, tmmu.measure])
def test_generators_and_coroutines_are_refused(call: Callable[..., object], step: Callable[..., object]) -> None:
    with pytest.raises(CaptureFailed, match=f"the step returns a {step.__name__}, and has not run"):
        call(step, X)


def test_measurement_beside_what_is_no_plan_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="a str is no plan"):
        tmmu.measure(MODEL, X, plan="linear.plan.cbor")  # type: ignore[arg-type]


def test_limit_of_a_difference_may_be_bytes() -> None:
    small, large = (tmmu.plan(MODEL, torch.randn(rows, 8), device="cpu") for rows in (4, 400))
    assert "total" in small.diff(large).over(0)
    assert small.diff(large).over(1 << 20) == ()
