"""``tmmu.compile(budget=)``: the same results in a smaller stack, and what cannot be had."""

import pytest
import torch
from torch import nn

import tmmu
from tmmu.errors import BudgetTooSmall, InvalidConfig


class Long(nn.Module):
    """What every level makes is needed again at the end, so that computing it again saves most of the stack."""

    def __init__(self) -> None:
        super().__init__()
        self.levels = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = []
        for level in self.levels:
            x = torch.tanh(level(x))
            seen.append(torch.exp(x))
        for each in reversed(seen):
            x = x + each
        return x


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return Long().eval()


def test_results_are_the_model_s_in_a_smaller_stack(model: nn.Module) -> None:
    x = torch.randn(256, 64, generator=torch.Generator().manual_seed(1))
    plain = tmmu.compile(model, x)
    budget = plain.plan.total - plain.plan.stack * 2 // 5
    with tmmu.compile(model, x, budget=budget, reserve=0) as small, torch.no_grad():
        assert small.plan.total <= budget < plain.plan.total
        assert small.plan.plan.fit is not None
        for seed in range(2):
            batch = torch.randn(256, 64, generator=torch.Generator().manual_seed(seed))
            assert torch.equal(small(batch), model(batch))
        model.levels[0].weight.mul_(0.5)
        assert torch.equal(small(x), model(x))


def test_what_fits_is_left_as_it_is(model: nn.Module) -> None:
    compiled = tmmu.compile(model, torch.zeros(256, 64), budget="4GiB")
    assert compiled.plan.plan.fit is None


@pytest.mark.parametrize("budget", [1, "100KiB", "150KiB"])
def test_budget_that_nothing_meets_is_refused(model: nn.Module, budget: str | int) -> None:
    with pytest.raises(BudgetTooSmall):
        tmmu.compile(model, torch.zeros(256, 64), budget=budget, reserve=0)


@pytest.mark.parametrize("budget", ["much", -1, 2.5, True, object()])
def test_budget_that_is_no_size_is_refused(model: nn.Module, budget: object) -> None:
    with pytest.raises(InvalidConfig):
        tmmu.compile(model, torch.zeros(2, 64), budget=budget)
