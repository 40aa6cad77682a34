"""Calls of a rewritten program are those that its graph says, and nothing of the traced calls is lost."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from tests.fits import unchanged, with_reruns, with_row
from tests.runtime.harness import TOKEN, capture_program, plan_of, same_bits
from tests.strategies import seeded
from tests.unit.judge.rewrite.programs import convolutions, deep_step, step
from tests.unit.judge.rewrite.rewriter import random_rewrite
from tmmu.errors import InternalError, PlanMismatch, RewriteUnsound, UnsupportedOp
from tmmu.ir.fit import FitRecord, fit_cost
from tmmu.ir.ids import OpId
from tmmu.ir.program import Call, Program, map_refs
from tmmu.ir.rewrite import RERUN, SAME, SUBLIST, TWIN
from tmmu.judge.rewrite.check import require_meaning
from tmmu.passes.lowering import rewrite_program as rewritten
from tmmu.passes.lowering.describe_calls import CallDescription, describe_call
from tmmu.passes.lowering.read_calls import read_program
from tmmu.passes.lowering.rewrite_program import rewrite_program, rewrite_repeated
from tmmu.planner.fit.early_updates import early_updates
from tmmu.runtime.execute.bind import bind


def form(call: Call) -> tuple[object, ...]:
    """What a call is, wherever it comes from; lists and tuples are one."""
    plain = [map_refs(list(arg) if isinstance(arg, tuple) else arg, lambda ref: ref) for arg in call.args]
    return str(call.operator), plain, dict(call.kwargs), call.results, call.switches


STEPS = {
    "lists": lambda: step("adamw:foreach"),
    "a fused update": lambda: step("adamw:fused"),
    "twins": lambda: convolutions("sgd:foreach"),
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("seed", range(4))
def test_calls_are_those_of_the_rewritten_graph(name: str, seed: int) -> None:
    base = STEPS[name]()
    graph, rewrite = random_rewrite(base, seeded(seed), with_sublists=True)
    assert {SAME, RERUN, TWIN, SUBLIST} == set(rewrite.kind)
    program = rewrite_program(read_program(base), rewrite)
    assert program.graph.ir_hash == graph.ir_hash
    assert list(map(form, program.calls)) == list(map(form, read_program(program.graph).calls))
    assert program.base is not None
    assert (program.base.graph, program.base.rewrite) == (base, rewrite)
    assert [call.origin for call in program.calls] == list(rewrite.origin)


def test_call_of_the_base_that_is_another_than_its_graph_says_is_an_internal_fault() -> None:
    base = read_program(step("draws"))
    rewrite = unchanged(base.graph)
    op, call = next((op, call) for op, call in enumerate(base.calls) if len([*call.refs()]) == 2)
    assert len(call.args) == 2
    for broken in (replace(call, args=(call.args[0], 7)), replace(call, args=(call.args[1], call.args[0]))):
        calls = (*base.calls[:op], broken, *base.calls[op + 1 :])
        with pytest.raises(InternalError, match="has another call than its"):
            rewrite_program(replace(base, calls=calls), rewrite)


def test_number_of_an_update_that_is_another_than_its_graph_says_is_an_internal_fault() -> None:
    base = read_program(step("adamw:fused"))
    op = len(base.calls) - 1
    kwargs = tuple((name, 0.5 if name == "lr" else value) for name, value in base.calls[op].kwargs)
    assert kwargs != base.calls[op].kwargs
    broken = replace(base, calls=(*base.calls[:op], replace(base.calls[op], kwargs=kwargs)))
    with pytest.raises(InternalError, match="other numbers"):
        rewrite_program(broken, unchanged(base.graph))


def test_lists_are_looked_at_once_however_many_parts_they_are_cut_into(monkeypatch: pytest.MonkeyPatch) -> None:
    base, looked_at = deep_step("adamw:foreach"), []

    def count(call: Call, *, has_inputs: bool) -> CallDescription:
        row = describe_call(call, has_inputs=has_inputs)
        looked_at.append(len(row.operands))
        return row

    rewrite = early_updates(base, smallest=1)
    assert rewrite.kind.count(SUBLIST) > 100
    monkeypatch.setattr(rewritten, "describe_call", count)
    rewrite_program(read_program(base), rewrite)
    assert base.calls is not None
    assert sum(looked_at) <= 2.5 * sum(map(len, base.calls.operands))


class LegitNorm(nn.Module):
    """The batch norm whose twin is another operator."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        norm = self.norm
        sides = norm.weight, norm.bias, norm.running_mean, norm.running_var
        wide, *_ = torch.ops.aten._native_batch_norm_legit(x, *sides, True, 0.1, 1e-5)
        return wide.sin()


def test_twin_that_is_another_operator_has_fewer_arguments() -> None:
    base, _ = capture_program(LegitNorm, {"x": torch.zeros(4, 3)})
    row = base.graph.ops.target.index("aten._native_batch_norm_legit.default")
    rewrite = with_row(unchanged(base.graph), row + 1, OpId(row), TWIN)
    program = rewrite_program(base, rewrite)
    require_meaning(base.graph, program.graph, rewrite)
    assert str(program.calls[row + 1].operator) == "aten._native_batch_norm_legit.no_stats"
    assert form(program.calls[row + 1]) == form(read_program(program.graph).calls[row + 1])
    weights = {f"norm.{name}": torch.rand(3) for name in ("weight", "bias", "running_mean", "running_var")}
    executors = [bind(each, plan_of(each), token=TOKEN, weights=weights) for each in (base, program)]
    x = torch.randn(4, 3)
    assert same_bits(*(executor.run({"x": x.clone()})[0] for executor in executors))
    assert same_bits(*(executor.state("norm.running_mean") for executor in executors))


class OwnGenerator(nn.Module):
    """Draws from a generator of its own, which no file holds."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noise = torch.rand(4, generator=self.generator)
        return (x.sin() * noise).cos()


def own_generator() -> Program:
    return capture_program(OwnGenerator, {"x": torch.zeros(4)})[0]


def test_generator_of_a_traced_call_stays() -> None:
    base = own_generator()
    program = rewrite_program(base, with_reruns(unchanged(base.graph), base.graph, {"sin.default": "mul.Tensor"}))
    drawn = [dict(call.kwargs)["generator"] for call in program.calls if "generator" in dict(call.kwargs)]
    assert len(drawn) == 1
    assert isinstance(drawn[0], torch.Generator)
    with pytest.raises(UnsupportedOp):
        read_program(program.graph)


def test_program_in_two_halves_is_not_rewritten() -> None:
    base = read_program(step("draws"))
    with pytest.raises(UnsupportedOp, match="two halves"):
        rewrite_program(replace(base, joint=cast("Any", SimpleNamespace(backward=object()))), unchanged(base.graph))
    with pytest.raises(InternalError, match="not rewritten"):
        rewrite_repeated(cast("Any", object()), base)


def test_program_that_does_not_mean_its_base_is_not_bound() -> None:
    base = read_program(step("draws"))
    redrawn = rewrite_program(base, with_row(unchanged(base.graph), len(base.calls), OpId(0)))
    with pytest.raises(RewriteUnsound, match="runs once"):
        bind(redrawn, plan_of(redrawn), token=TOKEN, weights={})


def test_plan_of_a_rewritten_graph_is_bound_with_its_base_alone() -> None:
    base = read_program(step("draws"))
    rewrite = unchanged(base.graph)
    program = rewrite_program(base, rewrite)
    record = FitRecord(rewrite=rewrite, cost=fit_cost(program.graph, rewrite, time_ppm=0))
    plan = replace(plan_of(program), fit=record)
    bind(program, plan, token=TOKEN, weights={}).close()
    with pytest.raises(PlanMismatch, match="does not say from what"):
        bind(read_program(program.graph), plan, token=TOKEN, weights={})
