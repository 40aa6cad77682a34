"""The whole pipeline up to a plan: capture, lower and passes, plan, judge. ``tmmu.model_run`` runs one.

    compile_model   a model      -> captured program -> program -> plan, judged
    compile_traced  a model      -> captured program -> program -> plan, judged, and the program
    compile_graph   a graph      ->                                plan, judged

Everything that decides a plan's bytes is an argument. The clock is read for reporting alone. With a cache, a plan that
is kept is taken in place of planning: under the bytes of the model's files where a key of them is given, else under
the graph that was traced.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Final, TypeVar

from platformdirs import user_cache_path

from tmmu.cache import CachedPlan, PlanCache
from tmmu.cache.key_parts import program_parts, request_parts, traced_parts
from tmmu.eager.peak import live_levels
from tmmu.ir.graph import Graph
from tmmu.ir.key import Key, NoKey, key_of
from tmmu.ir.plan import ArenaSpec, Plan, segment_bytes
from tmmu.ir.program import AssumedRouting, Switches
from tmmu.judge.check import judge
from tmmu.judge.rules import require_legal
from tmmu.passes.capture.collection import garbage_collection_off
from tmmu.planner.prepare import prepare_memory
from tmmu.planner.ring.prepare import RingRequest, prepare_ring

if TYPE_CHECKING:
    from tmmu.ir.program import Program
    from tmmu.passes.capture.program import CapturedProgram, RankKinds, Traffic
    from tmmu.passes.capture.request import CaptureRequest, Progress

T = TypeVar("T")
_NO_CACHE: Final = NoKey("no cache was asked for")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """All that a plan depends on beside the graph."""

    mode: str
    preset: str
    token: bytes
    arenas: tuple[ArenaSpec, ...]
    search_nodes: int = 0
    """Node budget of the exact search for offsets, where the packers miss the bound."""
    fuse: bool = False
    """Whether regions of ops become fused operators, whose results are near eager's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstStep:
    """The first run of a step of the user's, which makes optimizer state, as eager runs it, in bytes.

    ``growth``: by how much each later run leaves more than it found. ``skips_update``: the run that is planned calls
    no ``step`` of an optimizer that it reaches, and leaves gradients to it, as accumulation by a counter mostly does.
    """

    stack_bytes: int
    total_bytes: int
    growth: int
    skips_update: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A legal graph, a plan that the judge found sound, and the wall-clock seconds of each stage."""

    graph: Graph
    plan: Plan
    seconds: Mapping[str, float]
    assumed: tuple[str, ...] = ()
    """Inputs and buffers for whose values alone the graph was traced; empty where it was not traced now."""
    survivors: tuple[tuple[int, str], ...] = ()
    """(bytes, line that makes it) of what the program leaves with somebody who holds it, and no plan keeps."""
    scaled_updates: int = 0
    """Updates behind a scaler of gradients, planned as if none overflowed."""
    switches: tuple[Switches, ...] = ()
    """Torch's switches that choose kernels, where the trace met others than its defaults."""
    first_step: FirstStep | None = None
    """Of a step of the user's; ``None`` for a model, and where it was not traced now."""
    cached: CachedPlan | None = None
    """Where a cache had it from; ``None`` where none was asked."""
    rank_kinds: "RankKinds | None" = None
    """Of one rank of many, which others do the same; ``None`` for others, and where it was not traced now."""
    traffic: "Traffic | None" = None
    """Of one rank of many, what it sends to others; ``None`` as of ``rank_kinds``."""
    routings: tuple[AssumedRouting, ...] = ()
    """How gates were taken to route under a declared capacity; empty where it was not traced now."""

    @property
    def allocation_time_ns(self) -> int | None:
        """How long planning took, in nanoseconds; ``None`` where a cache had the plan. Reported, and in no plan."""
        return round(self.seconds["plan"] * 10**9) if "plan" in self.seconds else None


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


def compile_model(
    capture_request: "CaptureRequest",
    plan_request: PlanRequest,
    progress: "Progress",
    *,
    cache: PlanCache | None = None,
    key: Key | None = None,
) -> Compiled:
    """From a model to a sound plan. Imports torch.

    ``key`` names the model's files, where they say all: then it is traced only if ``cache`` has no graph of them.
    Without it the model is traced, and its plan looked up by the graph.
    """
    watch = Stopwatch()
    with garbage_collection_off():
        kept = cache.find_graph(key) if cache and key else None
        if kept is not None:
            return plan_through_cache(kept, plan_request, watch, cache=cache, key=key)
        captured, program = trace_model(capture_request, progress, watch)
        program = _fuse(program, plan_request, watch)
        if cache and key is None:
            key = key_of_graph(program.graph, plan_request)
        compiled = plan_through_cache(program.graph, plan_request, watch, cache=cache, key=key, is_legal=True)
        return with_findings(compiled, captured)


def compile_traced(
    capture_request: "CaptureRequest", plan_request: PlanRequest, progress: "Progress"
) -> "tuple[Compiled, Program]":
    """From a model to a sound plan and the program that it is for, not fused and of no cache. Imports torch."""
    watch = Stopwatch()
    with garbage_collection_off():
        captured, program = trace_model(capture_request, progress, watch)
        compiled = plan_through_cache(program.graph, plan_request, watch, cache=None, key=None, is_legal=True)
        return with_findings(compiled, captured), program


def compile_live(
    target: object, inputs: object, capture_request: "CaptureRequest", plan_request: PlanRequest
) -> Compiled:
    """From a model or step that is there as Python objects to a sound plan; nothing of it is changed. Imports torch."""
    from tmmu.passes.capture.request import no_progress
    from tmmu.passes.capture.trace import capture_live
    from tmmu.passes.pipeline import lower_program

    watch = Stopwatch()
    with garbage_collection_off():
        captured = watch.run("capture", lambda: capture_live(target, inputs, capture_request, no_progress))
        program = watch.run("lower", lambda: lower_program(captured))
        compiled = plan_through_cache(program.graph, plan_request, watch, cache=None, key=None, is_legal=True)
        return with_findings(compiled, captured)


def compile_graph(
    graph: Graph, plan_request: PlanRequest, *, cache: PlanCache | None = None, key: Key | None = None
) -> Compiled:
    """From a graph that is already there to a sound plan. Needs no torch."""
    return plan_through_cache(graph, plan_request, Stopwatch(), cache=cache, key=key)


def kernel_folder() -> Path:
    """Where forms of kernels and compiled ones are kept, beside the plans."""
    return cache_folder().parent / "kernels"


def stack_bytes_of(plan_request: PlanRequest) -> Callable[[Graph], int]:
    """How many bytes of stack a graph takes where it is planned so."""

    def stack_bytes(graph: Graph) -> int:
        return segment_bytes(_prepare(graph, plan_request).arenas, "stack")

    return stack_bytes


def _fuse(program: "Program", plan_request: PlanRequest, watch: Stopwatch) -> "Program":
    """The program that is planned: the fused one where that is asked for."""
    if not plan_request.fuse:
        return program
    from tmmu.fusion.fused_kernels import Guard, fuse_for_plan

    guard = Guard(stack_bytes=stack_bytes_of(plan_request))
    return watch.run("fuse", lambda: fuse_for_plan(program, guard, kernel_folder()).program)


def with_ring(compiled: Compiled, request: RingRequest, *, token: bytes) -> Compiled:
    """The same plan with a schedule for its weights, judged again."""
    watch = Stopwatch()
    plan = watch.run("ring", lambda: prepare_ring(compiled.graph, compiled.plan, request))
    watch.run("judge", lambda: judge(compiled.graph, plan, token=token))
    return replace(compiled, plan=plan, seconds=dict(compiled.seconds) | watch.seconds)


def load_cached_plan(cache: PlanCache, key: Key, request: PlanRequest) -> Compiled | None:
    """The plan under ``key``, kept or made of a graph that is kept; ``None`` where there is neither. Needs no torch."""
    watch = Stopwatch()
    judge_plan = partial(judge, token=request.token)
    cached = watch.run("lookup", lambda: cache.lookup(key, judge_plan))
    if isinstance(cached, CachedPlan):
        return Compiled(graph=cached.graph, plan=cached.plan, seconds=watch.seconds, cached=cached)
    graph = cache.find_graph(key)
    return None if graph is None else compile_graph(graph, request, cache=cache, key=key)


def key_of_traced_model(capture_request: "CaptureRequest", plan_request: PlanRequest, progress: "Progress") -> Key:
    """What ``compile_model`` looks up for a model whose files do not say all: it is traced. Imports torch."""
    with garbage_collection_off():
        return key_of_graph(trace_model(capture_request, progress, Stopwatch())[1].graph, plan_request)


def key_of_graph(graph: Graph, request: PlanRequest) -> Key:
    """The key of a traced program: its graph and what is asked."""
    return request_key(request, device=graph.target, optimizer=None).with_parts(*traced_parts(graph))


def request_key(request: PlanRequest, *, device: str, optimizer: str | None) -> Key:
    """A key of all but the model: what is asked, and which program answers."""
    parts = request_parts(
        device=device,
        mode=request.mode,
        optimizer=optimizer,
        preset=request.preset,
        token=request.token,
        arenas=request.arenas,
        search_nodes=request.search_nodes,
    )
    return key_of((*parts, *program_parts(os.environ)))


def plan_cache(*, reverify: bool = False) -> PlanCache:
    """The cache in the user's folder, or where ``TMMU_CACHE_DIR`` says; ``reverify`` judges what it reads again."""
    return PlanCache(cache_folder(), reverify=reverify)


def cache_folder() -> Path:
    """Where plans are kept: a folder of their own in the user's cache folder, or in ``TMMU_CACHE_DIR``."""
    named = os.environ.get("TMMU_CACHE_DIR")
    root = Path(named) if named else user_cache_path("tmmu", appauthor=False)
    return root.absolute() / "plans"  # absolute: a model may change the working folder while it is traced


def trace_model(request: "CaptureRequest", progress: "Progress", watch: Stopwatch) -> "tuple[CapturedProgram, Program]":
    """The captured program, and the program after every pass."""
    from tmmu.passes.capture.trace import capture
    from tmmu.passes.pipeline import lower_program

    captured = watch.run("capture", lambda: capture(request, progress))
    return captured, watch.run("lower", lambda: lower_program(captured))


def with_findings(compiled: Compiled, captured: "CapturedProgram") -> Compiled:
    """With what the trace found out and no plan says."""
    survivors = tuple((storage.bytes, storage.source) for storage in captured.survivors)
    return replace(
        compiled,
        assumed=captured.assumed,
        survivors=survivors,
        scaled_updates=captured.scaled_updates,
        switches=captured.switches,
        first_step=_first_step(captured),
        rank_kinds=captured.rank_kinds,
        traffic=captured.traffic,
        routings=captured.routings,
    )


def _first_step(captured: "CapturedProgram") -> FirstStep | None:
    first = captured.first
    if first is None:
        return None
    stack = max(live_levels(first.storages, first.calls), default=0)
    remains = captured.remains
    return FirstStep(
        stack_bytes=stack,
        total_bytes=first.persistent_bytes + stack,
        growth=captured.growth,
        skips_update=remains is not None and remains.has_optimizer and not remains.updates,
    )


def plan_through_cache(  # noqa: PLR0913 - a graph, what is asked of it, and where its plan may be kept
    graph: Graph,
    request: PlanRequest,
    watch: Stopwatch,
    *,
    cache: PlanCache | None,
    key: Key | None,
    is_legal: bool = False,
) -> Compiled:
    """The plan of this very graph, kept or made. A graph that the pass table gave ``is_legal``: it was checked there.

    Whatever graph lies beside a kept plan, the plan is judged against this one; a cache that does not judge what it
    reads again trusts the key, which covers the graph.
    """

    def make() -> tuple[Graph, Plan]:
        if not is_legal:
            watch.run("check", lambda: require_legal(graph))
        return graph, watch.run("plan", lambda: _prepare(graph, request))

    def judge_plan(_: Graph, plan: Plan) -> None:
        watch.run("judge", lambda: judge(graph, plan, token=request.token))

    cached = (cache or PlanCache(None)).get_or_make(key or _NO_CACHE, make, judge_plan)
    return Compiled(graph=graph, plan=cached.plan, seconds=watch.seconds, cached=cached if cache else None)


def _prepare(graph: Graph, request: PlanRequest) -> Plan:
    return prepare_memory(
        graph,
        mode=request.mode,
        preset=request.preset,
        token=request.token,
        arenas=request.arenas,
        search_nodes=request.search_nodes,
    )
