"""A step within a request: which lever it stops at, what it says of the floor, and of what does not fit."""

from dataclasses import replace
from typing import Any

import pytest

from tests.runtime.harness import TOKEN, plan_of
from tests.unit.judge.rewrite.programs import convolutions, deep_step
from tests.unit.planner.fit.head_models import head_step
from tmmu.errors import BudgetTooSmall
from tmmu.ir.graph import Graph
from tmmu.ir.plan import segment_bytes
from tmmu.passes.lowering.read_calls import read_program
from tmmu.planner.arenas import default_arenas
from tmmu.planner.fit import fit_graph as module
from tmmu.planner.fit.fit_graph import FitRequest, Fitting, fit_graph
from tmmu.planner.fit.fit_step import FittedStep, PlanSettings
from tmmu.planner.fit.forms import LEVER_NAMES, RECOMPUTE

REQUEST = FitRequest(
    limit=None,
    at_most=None,
    levers=LEVER_NAMES,
    arenas=default_arenas(),
    settings=PlanSettings(preset="train_full", token=TOKEN),
)


def fit(base: Graph, request: FitRequest = REQUEST) -> Fitting:
    return fit_graph(base, plan_of(read_program(base), mode="backward", preset="train_full"), request)


@pytest.mark.parametrize("near", [False, True])
def test_floor_is_that_of_the_form_with_its_head_in_parts(near: bool) -> None:
    found = fit(head_step("tied"), replace(REQUEST, near=near))
    assert 0 < found.floor.bytes <= found.fitted.live
    whole = fit(head_step("tied"), replace(REQUEST, levers=tuple(n for n in LEVER_NAMES if n != "parts")))
    assert found.floor.bytes < whole.floor.bytes <= whole.fitted.live


def test_first_lever_that_is_enough_is_the_last_that_is_pulled() -> None:
    base = deep_step("adamw:foreach")
    stages = fit(base).stages
    peaks = {stage.lever: stage.stack_bytes for stage in stages}
    assert peaks["updates"] < peaks["order"]
    found = fit(base, replace(REQUEST, limit=peaks["updates"]))
    assert [stage.lever for stage in found.stages] == ["", "takeover", "order", "updates"]
    assert found.fitted.plan.fit is not None
    assert "updates" in found.fitted.plan.fit.levers
    assert RECOMPUTE not in found.fitted.plan.fit.levers


def test_nothing_is_said_to_run_again_where_that_was_not_allowed() -> None:
    found = fit(convolutions("sgd"), replace(REQUEST, levers=("takeover", "order")))
    assert [stage.lever for stage in found.stages] == ["", "takeover", "order"]
    assert found.fitted.reruns == 0


@pytest.mark.parametrize("levers", [("parts",), ("takeover", "order", "updates", "parts")])
def test_nothing_runs_again_between_two_points_of_other_levers(levers: tuple[str, ...]) -> None:
    base = head_step("tied")
    least = fit(base, replace(REQUEST, levers=levers)).fitted
    whole = fit(base, replace(REQUEST, limit=10**9, levers=levers)).base_stack
    for limit in range(least.stack_bytes, whole, (whole - least.stack_bytes) // 6):
        found = fit(base, replace(REQUEST, levers=levers, limit=limit))
        assert found.fitted.stack_bytes <= limit
        assert found.fitted.reruns == found.fitted.flops == 0


def test_last_lever_s_row_is_what_is_taken_and_not_the_least_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fit_step = module.fit_step

    def more(*arguments: Any) -> FittedStep | None:
        fitted = fit_step(*arguments)
        return fitted and replace(fitted, flops=fitted.flops + 1)

    monkeypatch.setattr(module, "fit_step", more)
    found = fit(head_step("tied"), replace(REQUEST, levers=("parts",), limit=300_000))
    last, fitted = found.stages[-1], found.fitted
    assert (last.lever, last.stack_bytes, last.flops) == ("parts", fitted.stack_bytes, fitted.flops)
    assert last.time == fitted.time


def test_what_lives_in_the_limit_and_packs_in_no_plan_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    base = convolutions("sgd")
    least = fit(base).fitted.live
    monkeypatch.setattr(module, "fit_step", lambda *_: None)
    with pytest.raises(BudgetTooSmall, match="none of 32 plans packs them"):
        fit(base, replace(REQUEST, limit=least))
    monkeypatch.undo()
    with pytest.raises(BudgetTooSmall, match="too few; nothing goes below"):
        fit(base, replace(REQUEST, limit=least // 4))


def test_step_as_it_is_is_left_alone() -> None:
    base = convolutions("sgd")
    plan = plan_of(read_program(base), mode="backward", preset="train_full")
    found = fit(base, replace(REQUEST, limit=segment_bytes(plan.arenas, "stack")))
    assert found.fitted.graph is base
    assert found.fitted.plan.buffers == plan.buffers
