"""One run of a model inside its plan: traced, rewritten or fused as is asked, planned, bound, run, checked.

run_model       a model      -> captured program -> program -> plan, judged -> bound and run once
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tmmu.cache import PlanCache
from tmmu.codec.fitted import require_graph
from tmmu.driver import (
    Compiled,
    PlanRequest,
    Stopwatch,
    kernel_folder,
    key_of_graph,
    plan_through_cache,
    stack_bytes_of,
    trace_model,
    with_findings,
    with_ring,
)
from tmmu.errors import InvalidConfig
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan
from tmmu.passes.capture.collection import garbage_collection_off
from tmmu.planner.ring.prepare import RingRequest

if TYPE_CHECKING:
    from tmmu.fusion.fused_kernels import Fusion
    from tmmu.ir.program import Program
    from tmmu.passes.capture.program import CapturedProgram
    from tmmu.passes.capture.ranks.running_rank import RunningRank
    from tmmu.passes.capture.request import CaptureRequest, Progress
    from tmmu.runtime.compare.run import RunOptions, RunReport


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What a run depends on beside the plan: a seed for random tensors, a file of weights, what to compare and time.

    ``plan`` is the plan to run in, for this very graph or one made of it, where there is one already.
    """

    seed: int
    weights: Path | None
    check: bool
    sanitize: bool = False
    bench: bool = False
    compiled: bool = True
    """Whether ``torch.compile`` is part of the bench."""
    plan: Plan | None = None
    ring: RingRequest | None = None
    """How its weights are to stream, where they are and the plan does not say already."""
    prefetch: bool = True
    running: "RunningRank | None" = None
    """Which rank of many this process is; ``None`` for a model that is whole."""


def run_model(
    capture_request: "CaptureRequest",
    plan_request: PlanRequest,
    run_request: RunRequest,
    progress: "Progress",
    *,
    cache: PlanCache | None = None,
) -> tuple[Compiled, "RunReport"]:
    """From a model to one run inside its plan, which is made only where ``cache`` has none. Imports torch.

    The model is traced in any case: an operator's arguments are in no graph.
    """
    from tmmu.passes.capture.constants import (
        assumed_inputs,
        constant_values,
        integral_inputs,
        meta_weights,
        weight_names,
    )
    from tmmu.passes.capture.eager_model import stored_weights
    from tmmu.runtime.compare.run import RunOptions
    from tmmu.runtime.memory.sizing import require_device

    require_device(capture_request.device)
    watch = Stopwatch()
    with garbage_collection_off():
        captured, base = trace_model(capture_request, progress, watch)
        program = _rewrite_for_plan(base, run_request.plan, watch)
        fusion = _fuse_for_run(program, plan_request, watch, plan=run_request.plan)
        program = fusion.program if fusion else program
        compiled = _plan_for_run(program.graph, plan_request, run_request, watch, cache)
    progress("running", 0)
    options = RunOptions(
        token=plan_request.token,
        names=weight_names(captured),
        forms=meta_weights(captured),
        constants=constant_values(captured),
        stored=stored_weights(capture_request),
        inputs=assumed_inputs(captured),
        integers=integral_inputs(captured),
        seed=run_request.seed,
        weights=run_request.weights,
        check=run_request.check,
        sanitize=run_request.sanitize,
        bench=run_request.bench,
        compiled=run_request.compiled,
        prefetch=run_request.prefetch,
        kernels=fusion.kernels if fusion else {},
        unfused=fusion.reason if fusion else "",
    )
    with _among_ranks(program, run_request.running):
        report = watch.run(
            "run", lambda: _run_in_plan(capture_request, captured, (base, program), compiled.plan, options)
        )
    return with_findings(replace(compiled, seconds=watch.seconds), captured), report


def _fuse_for_run(
    program: "Program", plan_request: PlanRequest, watch: Stopwatch, *, plan: Plan | None
) -> "Fusion | None":
    """The fused program where that is asked for: as a fitted plan says, of which the budget and arenas are not here."""
    if not plan_request.fuse:
        return None
    from tmmu.fusion.fused_kernels import Guard, KeptApart, fuse_for_run

    guard: Guard | KeptApart = Guard(stack_bytes=stack_bytes_of(plan_request))
    if plan is not None and plan.fit is not None:
        if plan.fit.fused is None:
            raise InvalidConfig("no op of the fitted plan is fused", fix="leave out --fuse, or fit it with --fuse")
        guard = KeptApart(apart=plan.fit.fused.apart)
    return watch.run("fuse", lambda: fuse_for_run(program, guard, kernel_folder(), is_planned=plan is not None))


@contextmanager
def _among_ranks(program: "Program", running: "RunningRank | None") -> Iterator[None]:
    """Block in which this process is that rank of many, with the process groups that the program names."""
    if running is None:
        yield
        return
    from tmmu.passes.capture.ranks.process_group import running_process_group
    from tmmu.runtime.kernels.collectives import make_groups

    with running_process_group(running):
        make_groups(program)
        yield


def _rewrite_for_plan(base: "Program", plan: Plan | None, watch: Stopwatch) -> "Program":
    """The program that a plan is for: the one that was traced, or what its key ``fit`` makes of that."""
    if plan is None or plan.fit is None:
        return base
    from tmmu.passes.lowering.rewrite_program import rewrite_program

    rewrite = plan.fit.rewrite
    program = watch.run("rewrite", lambda: rewrite_program(base, rewrite))
    require_graph(plan, program.graph)
    return program


def _run_in_plan(
    request: "CaptureRequest",
    captured: "CapturedProgram",
    programs: "tuple[Program, Program]",
    plan: Plan,
    options: "RunOptions",
) -> "RunReport":
    """A run of a model, or of a step of the user's, which begins where its first step has ended.

    ``programs``: the one that was traced, and the one that the plan is for.
    """
    from tmmu.passes.capture.eager_model import EagerModel
    from tmmu.passes.capture.eager_step import EagerStep
    from tmmu.passes.lowering.repeat_step import repeat_step
    from tmmu.passes.lowering.rewrite_program import rewrite_repeated
    from tmmu.runtime.compare.run import run_planned
    from tmmu.runtime.compare.step_run import run_own_step

    base, program = programs
    if request.mode != "step":
        return run_planned(program, plan, options, lambda: EagerModel(request))
    repeated = repeat_step(captured, base)
    if program.base is not None:
        repeated = rewrite_repeated(repeated, program)
    return run_own_step(program, plan, repeated, options, EagerStep(request, options.seed))


def _plan_for_run(
    graph: Graph, plan_request: PlanRequest, run_request: RunRequest, watch: Stopwatch, cache: PlanCache | None
) -> Compiled:
    """The plan that is given, which binding judges, or a plan through the cache; with the ring that is asked for."""
    if run_request.plan is not None:
        compiled = Compiled(graph=graph, plan=run_request.plan, seconds=watch.seconds)
    else:
        key = key_of_graph(graph, plan_request) if cache else None
        compiled = plan_through_cache(graph, plan_request, watch, cache=cache, key=key, is_legal=True)
    return with_ring(compiled, run_request.ring, token=plan_request.token) if run_request.ring else compiled
