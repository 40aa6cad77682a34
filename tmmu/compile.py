"""The whole pipeline: capture, lower, check, plan, judge, run.

Everything that decides a plan's bytes is an argument. The clock is read for reporting alone.
"""

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

from tmmu.ir.check import judge
from tmmu.ir.graph import Graph
from tmmu.ir.plan import ArenaSpec, Plan
from tmmu.ir.rules import require_legal
from tmmu.planner.prepare import prepare_memory

if TYPE_CHECKING:
    from tmmu.passes.request import CaptureRequest, Progress
    from tmmu.runtime.rehearse import Rehearsal

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """All that a plan depends on beside the graph."""

    mode: str
    preset: str
    token: bytes
    arenas: tuple[ArenaSpec, ...]
    nodes: int = 0
    """How far an exact search of offsets may go where the packers miss the bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A legal graph, a plan that the judge found sound, and the wall-clock seconds of each stage."""

    graph: Graph
    plan: Plan
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What a run depends on beside the plan: a seed for all that is drawn, a file of weights, whether to compare."""

    seed: int
    weights: Path | None
    check: bool


class Stopwatch:
    """Runs stages and keeps how long each took, in the order they ran."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def run(self, stage: str, step: Callable[[], T]) -> T:
        """What ``step`` returns."""
        start = perf_counter()
        result = step()
        self.seconds[stage] = perf_counter() - start
        return result


def compile_model(capture_request: "CaptureRequest", plan_request: PlanRequest, progress: "Progress") -> Compiled:
    """From a model to a sound plan. Imports torch."""
    from tmmu.passes import capture, lower

    watch = Stopwatch()
    with uncollected():
        program = watch.run("capture", lambda: capture(capture_request, progress))
        graph = watch.run("lower", lambda: lower(program))
        return _plan(graph, plan_request, watch)


def run_model(
    capture_request: "CaptureRequest", plan_request: PlanRequest, run_request: RunRequest, progress: "Progress"
) -> tuple[Compiled, "Rehearsal"]:
    """From a model to one run inside its plan. Imports torch."""
    from tmmu.passes import capture, lower_with_calls
    from tmmu.passes.constants import constant_values, weight_names
    from tmmu.runtime.rehearse import rehearse

    watch = Stopwatch()
    with uncollected():
        traced = watch.run("capture", lambda: capture(capture_request, progress))
        program = watch.run("lower", lambda: lower_with_calls(traced))
        compiled = _plan(program.graph, plan_request, watch)
    progress("running", 0)
    ran = watch.run(
        "run",
        lambda: rehearse(
            program,
            compiled.plan,
            token=plan_request.token,
            names=weight_names(traced),
            constants=constant_values(traced),
            seed=run_request.seed,
            weights=run_request.weights,
            check=run_request.check,
        ),
    )
    return Compiled(graph=compiled.graph, plan=compiled.plan, seconds=watch.seconds), ran


@contextmanager
def uncollected() -> Iterator[None]:
    """While inside, no cycles are collected: what is made lives to the end, and looking costs a quarter of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def compile_graph(graph: Graph, plan_request: PlanRequest) -> Compiled:
    """From a graph that is already there to a sound plan. Needs no torch."""
    return _plan(graph, plan_request, Stopwatch())


def _plan(graph: Graph, request: PlanRequest, watch: Stopwatch) -> Compiled:
    watch.run("check", lambda: require_legal(graph))
    plan = watch.run(
        "plan",
        lambda: prepare_memory(
            graph,
            mode=request.mode,
            preset=request.preset,
            token=request.token,
            arenas=request.arenas,
            nodes=request.nodes,
        ),
    )
    watch.run("judge", lambda: judge(graph, plan, token=request.token))
    return Compiled(graph=graph, plan=plan, seconds=watch.seconds)
