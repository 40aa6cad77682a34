"""``tmmu.compile(budget=)``: the same results in a smaller stack, and what cannot be had."""

import pytest
import torch
from torch import nn

import tmmu
from tests.compiler import needs_compiler
from tmmu.errors import BudgetTooSmall, InvalidConfig
from tmmu.ir.rewrite import PARTIAL_KINDS
from tmmu.runtime.steps.fused_trial import is_near


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


@needs_compiler
@pytest.mark.slow
def test_what_fits_is_fused_in_no_more(model: nn.Module) -> None:
    x = torch.randn(256, 64, generator=torch.Generator().manual_seed(1))
    plain = tmmu.compile(model, x)
    budget = plain.plan.total - plain.plan.stack * 2 // 5
    small = tmmu.compile(model, x, budget=budget, reserve=0)
    with tmmu.compile(model, x, budget=budget, reserve=0, fuse=True) as fused, torch.no_grad():
        assert fused.plan.total <= small.plan.total <= budget
        assert fused.plan.plan.fit is not None
        assert fused.plan.plan.fit.fused is not None
        assert is_near(fused(x), model(x))


def partial_kinds(compiled: tmmu.CompiledModel) -> set[str]:
    fit = compiled.plan.plan.fit
    return set() if fit is None else set(fit.rewrite.kind) & set(PARTIAL_KINDS)


class Stacked(Long):
    """The same, of ops that may run in parts."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = []
        for level in self.levels:
            x = torch.relu(level(x))
            seen.append(x * 2)
        for each in reversed(seen):
            x = x + each
        return x


def test_parts_with_other_bits_on_the_device_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Stacked().eval(), torch.randn(256, 64, generator=torch.Generator().manual_seed(1))
    plain = tmmu.compile(model, x).plan
    budget = plain.total - plain.stack * 2 // 5
    with tmmu.compile(model, x, budget=budget, reserve=0) as in_parts, torch.no_grad():
        assert partial_kinds(in_parts)
        assert torch.equal(in_parts(x), model(x))
    monkeypatch.setattr("tmmu.runtime.steps.part_trial.has_same_bits", lambda *_: False)
    with tmmu.compile(model, x, budget=budget, reserve=0) as whole, torch.no_grad():
        assert whole.plan.total <= budget
        assert whole.plan.plan.fit is not None
        assert not partial_kinds(whole)
        assert torch.equal(whole(x), model(x))


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
