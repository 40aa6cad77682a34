"""Fitted steps whose ops are fused: a fit chooses the rewritten graph, and fusing groups what is left inside it.

The judge of rewrites holds the rewritten graph against its base before anything of it is fused; the pass ``fuse`` holds
the fused graph against that. No fused step takes more stack than its fit.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from tmmu.fusion.fused_kernels import Fusion, Guard, fuse_for_plan, fuse_for_run, fuse_if_compiled
from tmmu.ir.fit import FusedRecord
from tmmu.ir.plan import segment_bytes
from tmmu.ir.program import Program
from tmmu.judge.check import judge
from tmmu.passes.lowering.rewrite_program import rewrite_program
from tmmu.planner.fit.fit_graph import FitRequest
from tmmu.planner.fit.fit_step import FittedStep, PlanSettings, plan_alike


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedStep:
    """A fitted step with fused ops, and what runs it: ``step`` is the fitted one where nothing of it is fused."""

    step: FittedStep
    fusion: Fusion


def fuse_fitted(base: Program, fitted: FittedStep, request: FitRequest, folder: Path | None) -> FittedStep:
    """The fitted step with ops fused, in at most its stack, as its plan says. Compiles nothing.

    ``base``: the program that it was fitted from. The same on every machine of one version of torch.
    """
    rewritten = rewrite_program(base, fitted.rewrite)
    below = fuse_for_plan(rewritten, _guard(fitted, request), folder)
    return _plan_step(fitted, request, rewritten, below.program, below.apart)


def fuse_fitted_for_run(
    base: Program, fitted: FittedStep, request: FitRequest, folder: Path, *, if_compiled: bool = False
) -> FusedStep:
    """The same with its kernels; where none can be compiled here, the rewritten program as it is.

    That too where they are not compiled yet and are to be used only ``if_compiled``.
    """
    rewritten = rewrite_program(base, fitted.rewrite)
    fuse = fuse_if_compiled if if_compiled else fuse_for_run
    fusion = fuse(rewritten, _guard(fitted, request), folder)
    return FusedStep(step=_plan_step(fitted, request, rewritten, fusion.program, fusion.apart), fusion=fusion)


def _settings(fitted: FittedStep, request: FitRequest) -> PlanSettings:
    """How the fitted step was planned, with takeovers where it has them."""
    return replace(request.settings, mode=fitted.plan.mode, preset=fitted.plan.preset)


def _guard(fitted: FittedStep, request: FitRequest) -> Guard:
    settings = _settings(fitted, request)
    return Guard(
        stack_bytes=lambda graph: segment_bytes(plan_alike(graph, request.arenas, settings).arenas, "stack"),
        limit=fitted.stack_bytes,
    )


def _plan_step(
    fitted: FittedStep, request: FitRequest, rewritten: Program, fused: Program, apart: tuple[str, ...]
) -> FittedStep:
    """The step of the fused program: planned with the rewrite that its ops were fused in, and judged."""
    if fused is rewritten or fitted.plan.fit is None:
        return fitted
    settings = _settings(fitted, request)
    record = replace(fitted.plan.fit, fused=FusedRecord(rewritten_hash=rewritten.graph.ir_hash, apart=apart))
    plan = replace(plan_alike(fused.graph, request.arenas, settings), fit=record)
    judge(fused.graph, plan, token=settings.token)
    arenas = zip(plan.arenas.segment, plan.arenas.bound, strict=True)
    live = sum(bound for segment, bound in arenas if segment == "stack")
    return replace(fitted, graph=fused.graph, plan=plan, live=live)
