"""Fitted steps with fused ops: rewritten first, then fused in no more than the fit takes, and bound with both facts."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.api.test_compile_budget import Long
from tests.fits import find, fit_plan, unchanged, with_row
from tests.runtime.harness import TOKEN, plan_of, weights_of
from tests.unit.fusion.programs import program_of
from tests.unit.judge.rewrite.host_copies import copied, trips
from tmmu.codec.fitted import judge_fitted, write_fitted
from tmmu.codec.read import read_plan
from tmmu.driver import Compiled
from tmmu.errors import PlanMismatch, PlanUnsound
from tmmu.fused_fit import fuse_fitted
from tmmu.fusion.call_form import KernelForm
from tmmu.fusion.fuse_program import fuse_program
from tmmu.fusion.fused_operators import group_of, is_fused
from tmmu.fusion.kernel_source import KernelSource
from tmmu.ir.graph import HOST
from tmmu.ir.plan import Plan, encode_plan, segment_bytes
from tmmu.ir.program import Program
from tmmu.passes.lowering.rewrite_program import rewrite_program
from tmmu.planner.arenas import default_arenas
from tmmu.planner.fit.fit_graph import FitRequest, fit_graph
from tmmu.planner.fit.fit_step import FittedStep, PlanSettings
from tmmu.planner.fit.forms import LEVER_NAMES
from tmmu.runtime.execute.bind import bind
from tmmu.runtime.execute.executor import Executor

BARE = KernelForm(pointers=(), scratch=())
GREEDY = KernelForm(pointers=(), scratch=(1 << 24,))


def inputs() -> dict[str, torch.Tensor]:
    return {"x": torch.randn(256, 64, generator=torch.Generator().manual_seed(1))}


@cache
def fitted() -> tuple[Program, FittedStep, FitRequest]:
    """A step that computes some of it again to fit, and the program of the step as it is."""
    program = program_of(Long, inputs())
    plan = plan_of(program)
    compiled = Compiled(graph=program.graph, plan=plan, seconds={})
    settings = PlanSettings(preset=plan.preset, token=TOKEN, budget=1 << 20)
    limit = segment_bytes(plan.arenas, "stack") * 3 // 5
    request = FitRequest(limit=limit, at_most=None, levers=LEVER_NAMES, arenas=default_arenas(), settings=settings)
    return program, fit_graph(compiled.graph, plan, request).fitted, request


def fuse(monkeypatch: pytest.MonkeyPatch, form: KernelForm) -> FittedStep:
    """The fitted step, fused as if each kernel had this form: none is generated."""
    source = KernelSource(form=form, types=(), text="")
    monkeypatch.setattr("tmmu.fusion.kernel_forms.generate_kernel", lambda *_, **__: source)
    return fuse_fitted(*fitted(), folder=None)


def fused_program(plan: Plan) -> Program:
    """What a run makes of the model and the plan alone."""
    assert plan.fit is not None
    assert plan.fit.fused is not None
    rewritten = rewrite_program(fitted()[0], plan.fit.rewrite)
    return fuse_program(rewritten, lambda _: BARE, apart=plan.fit.fused.apart)


def bound(program: Program, plan: Plan) -> Executor:
    torch.manual_seed(0)
    return bind(program, plan, token=TOKEN, weights=weights_of(Long()))


def test_plan_and_model_alone_make_the_fused_step_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program, step, _ = fitted()
    fused = fuse(monkeypatch, BARE)
    assert fused.plan.fit is not None
    assert fused.plan.fit.fused is not None
    assert fused.plan.fit.fused.rewritten_hash == step.graph.ir_hash != fused.graph.ir_hash
    assert fused.stack_bytes <= step.stack_bytes
    assert len(fused.graph.ops) < len(step.graph.ops)
    paths = write_fitted(tmp_path, "long", base=program.graph, plan=fused.plan, token=TOKEN, fused=fused.graph)
    plan = read_plan(paths[2].read_bytes())
    assert plan == fused.plan
    again = fused_program(plan)
    assert again.graph.ir_hash == plan.ir_hash
    plain, run = bound(rewrite_program(program, step.rewrite), step.plan), bound(again, plan)
    for expected, found in zip(plain.run(inputs()), run.run(inputs()), strict=True):
        assert expected.equal(found), "members one by one have the bits of the step"


def test_nothing_is_fused_that_takes_more_than_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fuse(monkeypatch, GREEDY) is fitted()[1]


def test_base_that_the_plan_does_not_say_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    program, step, _ = fitted()
    plan = fuse(monkeypatch, BARE).plan
    assert plan.fit is not None
    fused = fused_program(plan)
    rewritten = rewrite_program(program, step.rewrite)
    for each, other, words in (
        (rewritten, plan, "ops of the plan are fused, and none of the program"),
        (fused, step.plan, "the program's ops are fused"),
        (replace(fused, base=None), plan, "does not say from what"),
    ):
        with pytest.raises(PlanMismatch, match=words):
            bound(each, other)
    assert fused.base is not None
    lie = replace(fused, base=replace(fused.base, rewritten=program.graph))
    with pytest.raises(PlanMismatch, match="other graphs were fused"):
        bound(lie, plan)


def test_files_of_another_rewrite_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    base, fused = fitted()[0].graph, fuse(monkeypatch, BARE)
    assert fused.plan.fit is not None
    assert judge_fitted(base, fused.plan, token=TOKEN, fused=fused.graph) is fused.graph
    record = replace(fused.plan.fit, fused=replace(fused.plan.fit.fused, rewritten_hash=bytes(32)))
    plan = replace(fused.plan, fit=record)
    with pytest.raises(PlanUnsound, match="its key fit makes graph"):
        judge_fitted(base, plan, token=TOKEN, fused=fused.graph)
    with pytest.raises(PlanMismatch):
        write_fitted(tmp_path, "x", base=base, plan=read_plan(encode_plan(fused.plan)), token=TOKEN, fused=base)
    assert list(tmp_path.iterdir()) == []


def test_ops_whose_results_all_run_again_are_left_out() -> None:
    """Of a row twice before its reader, nobody reads what the first one makes: the program in which ops are fused
    has the second alone.
    """
    program = program_of(Long, inputs())
    exp = find(program.graph, "exp.default")
    rewritten = rewrite_program(program, with_row(unchanged(program.graph), exp + 1, exp))
    fused = fuse_program(rewritten, lambda _: BARE)
    assert fused.base is not None
    assert fused.base.rewritten is rewritten.graph
    run = [m for c in fused.calls for m in (group_of(c.operator).members if is_fused(c.operator) else (c,))]
    exps = [sum(str(call.operator) == "aten.exp.default" for call in calls) for calls in (rewritten.calls, run)]
    assert exps == [7, 6]


def test_copies_to_the_host_are_no_members() -> None:
    program = program_of(Long, inputs())
    rewrite = copied(program.graph, trips(program.graph)[:2])
    fused = fuse_program(rewrite_program(program, rewrite), lambda _: BARE)
    graph = fused.graph
    touching = [
        target
        for op, target in enumerate(graph.ops.target)
        if HOST in {graph.buffers.role[graph.values.buffer[v]] for v in (*graph.ops.reads[op], *graph.ops.writes[op])}
    ]
    assert touching == ["aten.clone.default"] * 4
    assert any(is_fused(call.operator) for call in fused.calls)
    assert fit_plan(program.graph, rewrite, mode="inference").fit is not None
