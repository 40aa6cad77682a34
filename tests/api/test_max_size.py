"""``tmmu.max_size``: the largest size of whatever makes plans, and arguments that make no sense."""

from typing import Any

import pytest
import torch
from torch import nn

import tmmu
from tmmu import MemoryPlan
from tmmu.errors import BudgetTooSmall, InvalidConfig


def plan_of(batch: int) -> MemoryPlan:
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    return tmmu.plan(model, torch.empty(batch, 64, device="meta"), training=True, loss="sum", optimizer="sgd")


def test_largest_batch_is_the_last_that_fits_beside_the_reserve() -> None:
    found = tmmu.max_size(plan_of, "1MB", reserve="100kB")
    assert found.predicted
    assert found.sizes == (2, 3, found.size)
    assert found.plan.total == plan_of(found.size).total
    assert found.plan.fits("1MB", run="planned", reserve="100kB")
    assert not plan_of(found.size + 1).fits("1MB", run="planned", reserve="100kB")


def test_plan_s_own_arenas_are_those_of_predictions() -> None:
    def aligned(batch: int) -> MemoryPlan:
        model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
        return tmmu.plan(
            model,
            torch.empty(batch, 64, device="meta"),
            arenas=[f"{name}=alignment:4096" for name in ("activations", "gradients")],
        )

    found = tmmu.max_size(aligned, "1MB", reserve=0)
    assert found.predicted
    assert found.plan.total <= 1_000_000 < aligned(found.size + 1).total


def test_plans_of_inference_overwrite() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(3)))
    found = tmmu.max_size(lambda batch: tmmu.plan(model, torch.empty(batch, 64, device="meta")), 500_000, reserve=0)
    assert found.predicted
    larger = tmmu.plan(model, torch.empty(found.size + 1, 64, device="meta"))
    assert found.plan.total <= 500_000 < larger.total


def test_where_nothing_fits_the_least_is_said() -> None:
    with pytest.raises(BudgetTooSmall, match="not even 1 fits"):
        tmmu.max_size(plan_of, "10kB", reserve=0)
    with pytest.raises(BudgetTooSmall, match="the reserve of 1\\.0 GiB is more than"):
        tmmu.max_size(plan_of, "10kB")


@pytest.mark.parametrize("starts", [(2,), (2, 2), (1, 2), [2, 3], ("2", 3), (2, 3, True), (2, 2**40)])
def test_starts_that_make_no_sense_are_refused(starts: Any) -> None:
    with pytest.raises(InvalidConfig, match=r"is no|are no"):
        tmmu.max_size(plan_of, "1MB", starts=starts)


def test_what_makes_no_plan_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="is no plan"):
        tmmu.max_size(lambda _: 7, "1MB", reserve=0)  # type: ignore[arg-type, return-value]
    with pytest.raises(InvalidConfig, match="is not a size"):
        tmmu.max_size(plan_of, 1.5)  # type: ignore[arg-type]
