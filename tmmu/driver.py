"""The whole pipeline: capture, lower, check, plan, judge, run.

Everything that decides a plan's bytes is an argument. The clock is read for reporting alone.
"""

import gc
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Final, TypeVar

from platformdirs import user_cache_path

from tmmu.cache import Found, PlanCache, store
from tmmu.cache.key_parts import library_parts, program_parts, request_parts, traced_parts
from tmmu.errors import TmmuError
from tmmu.ir.graph import Graph
from tmmu.ir.key import Key, NoKey, key_of
from tmmu.ir.plan import ArenaSpec, Plan
from tmmu.judge.check import judge
from tmmu.judge.rules import require_legal
from tmmu.planner.prepare import prepare_memory
from tmmu.planner.ring.prepare import RingRequest, prepare_ring

if TYPE_CHECKING:
    from tmmu.passes.capture.fingerprint.watch import Watch
    from tmmu.passes.capture.request import CaptureRequest, Progress
    from tmmu.passes.capture.trace import Opened
    from tmmu.runtime.compare.run import Rehearsal

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
    found: Found | None = None
    """Where a cache had it from; ``None`` where none was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What a run depends on beside the plan: a seed for all that is drawn, a file of weights, what to look at.

    ``plan`` is the plan to run in, for this very graph, where there is one already.
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
    """From a model to a sound plan, traced only where ``cache`` has none. Imports torch.

    Without ``key`` the model is made and looked at for one; so it is made in any case, and seldom traced.
    """
    from tmmu.passes.capture.trace import opened
    from tmmu.passes.pipeline import lower_program

    watch = Stopwatch()
    with uncollected(), ExitStack() as stack:
        model = watch.run("build", lambda: stack.enter_context(opened(capture_request, progress)))
        found: Key | NoKey = key or _UNNAMED
        watched: Watch | None = None
        if cache is not None and key is None:
            found, watched = watch.run("fingerprint", lambda: _looked_at(model, plan_request))

        def graph() -> Graph:
            kept = cache.graph(found) if cache is not None and isinstance(found, Key) else None
            if kept is not None:
                return kept
            program = watch.run("capture", lambda: model.trace(progress, watch=watched))
            return watch.run("lower", lambda: lower_program(program).graph)

        unkept = (lambda: watched.seen) if watched else _kept
        return _found(graph, plan_request, watch, cache=cache, key=found, unkept=unkept)


def cached(cache: PlanCache, key: Key, request: PlanRequest) -> Compiled | None:
    """The plan under ``key``, kept or made of a graph that is kept; ``None`` where there is neither. Needs no torch."""
    watch = Stopwatch()
    judge_it = partial(judge, token=request.token)
    found = watch.run("lookup", lambda: cache.lookup(key, judge_it))
    if isinstance(found, Found):
        return Compiled(graph=found.graph, plan=found.plan, seconds=watch.seconds, found=found)
    graph = cache.graph(key)
    return None if graph is None else compile_graph(graph, request, cache=cache, key=key)


def lookup_key(capture_request: "CaptureRequest", plan_request: PlanRequest, progress: "Progress") -> Key | NoKey:
    """What ``compile_model`` would look up. Imports torch.

    The model is made; where nothing is kept under its key it is also traced, to see whether anything may be.
    """
    from tmmu.passes.capture.trace import opened

    with uncollected(), opened(capture_request, progress) as model:
        key, watched = _looked_at(model, plan_request)
        if watched is None or isinstance(key, NoKey) or store.path_of(cache_folder(), key).exists():
            return key
        with suppress(TmmuError):  # what cannot be traced is no question of the key
            model.trace(progress, watch=watched)
        return NoKey(watched.seen) if watched.seen else key


def model_key(model: "Opened", request: PlanRequest) -> Key | NoKey:
    """The key of a model that was made and not traced; or why it has none."""
    return _looked_at(model, request)[0]


def _looked_at(model: "Opened", request: PlanRequest) -> "tuple[Key | NoKey, Watch | None]":
    """The key of a model, and what sees whether a trace of it depends on more than the key says."""
    from tmmu.passes.capture.fingerprint import fingerprint
    from tmmu.passes.capture.fingerprint.watch import Watch

    found = fingerprint(model.workload, model.build, training=request.mode != "inference")
    if isinstance(found, NoKey):
        return found, None
    libraries = library_parts(found.libraries)
    if isinstance(libraries, NoKey):
        return libraries, None
    asked = request_key(request, device=model.request.device, optimizer=model.request.optimizer)
    return asked.replaced(*found.parts, *libraries), Watch(model.workload.folder, found.codes)


def request_key(request: PlanRequest, *, device: str, optimizer: str | None) -> Key:
    """A key of all but the model: what is asked, and which program answers."""
    asked = request_parts(
        device=device,
        mode=request.mode,
        optimizer=optimizer,
        preset=request.preset,
        token=request.token,
        arenas=request.arenas,
        nodes=request.nodes,
    )
    return key_of((*asked, *program_parts(os.environ)))


def traced_key(graph: Graph, request: PlanRequest) -> Key:
    """The key of a program that is traced in any case: its graph says all, so nobody has to look at the model."""
    return request_key(request, device=graph.target, optimizer=None).replaced(*traced_parts(graph))


def plan_cache(*, doubt: bool = False) -> PlanCache:
    """The cache in the user's folder, or where ``TMMU_CACHE_DIR`` says."""
    return PlanCache(cache_folder(), doubt=doubt)


def cache_folder() -> Path:
    """Where plans are kept: a folder of their own in the user's cache folder, or in ``TMMU_CACHE_DIR``."""
    named = os.environ.get("TMMU_CACHE_DIR")
    root = Path(named) if named else user_cache_path("tmmu", appauthor=False)
    return root.absolute() / "plans"  # wherever a model goes while it is traced


def run_model(
    capture_request: "CaptureRequest",
    plan_request: PlanRequest,
    run_request: RunRequest,
    progress: "Progress",
    *,
    cache: PlanCache | None = None,
) -> tuple[Compiled, "Rehearsal"]:
    """From a model to one run inside its plan, which is made only where ``cache`` has none. Imports torch.

    The model is traced in any case: an operator's arguments are in no graph.
    """
    from tmmu.passes.capture.constants import constant_values, weight_forms, weight_names
    from tmmu.passes.capture.original import Original, stored_weights
    from tmmu.passes.capture.trace import capture
    from tmmu.passes.pipeline import lower_program
    from tmmu.runtime.compare.run import Rehearsing, rehearse
    from tmmu.runtime.memory.sizing import require_device

    require_device(capture_request.device)
    watch = Stopwatch()
    with uncollected():
        traced = watch.run("capture", lambda: capture(capture_request, progress))
        program = watch.run("lower", lambda: lower_program(traced))
        compiled = _given(program.graph, run_request.plan, watch)
        if compiled is None:
            key = traced_key(program.graph, plan_request) if cache else _UNNAMED
            compiled = _plan(program.graph, plan_request, watch, cache=cache, key=key)
        if run_request.ring is not None:
            compiled = with_ring(compiled, run_request.ring, token=plan_request.token)
    progress("running", 0)
    asked = Rehearsing(
        token=plan_request.token,
        names=weight_names(traced),
        forms=weight_forms(traced),
        constants=constant_values(traced),
        stored=stored_weights(capture_request.target),
        seed=run_request.seed,
        weights=run_request.weights,
        check=run_request.check,
        sanitize=run_request.sanitize,
        bench=run_request.bench,
        compiled=run_request.compiled,
        prefetch=run_request.prefetch,
    )
    ran = watch.run("run", lambda: rehearse(program, compiled.plan, asked, lambda: Original(capture_request)))
    return replace(compiled, seconds=watch.seconds), ran


def _given(graph: Graph, plan: Plan | None, watch: Stopwatch) -> Compiled | None:
    """The plan that is there already, which binding judges."""
    return None if plan is None else Compiled(graph=graph, plan=plan, seconds=watch.seconds)


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


def compile_graph(
    graph: Graph, plan_request: PlanRequest, *, cache: PlanCache | None = None, key: Key | None = None
) -> Compiled:
    """From a graph that is already there to a sound plan. Needs no torch."""
    return _plan(graph, plan_request, Stopwatch(), cache=cache, key=key or _UNNAMED)


def with_ring(compiled: Compiled, request: RingRequest, *, token: bytes) -> Compiled:
    """The same plan with a schedule for its weights, judged again."""
    watch = Stopwatch()
    plan = watch.run("ring", lambda: prepare_ring(compiled.graph, compiled.plan, request))
    watch.run("judge", lambda: judge(compiled.graph, plan, token=token))
    return replace(compiled, plan=plan, seconds=dict(compiled.seconds) | watch.seconds)


def _plan(
    graph: Graph, request: PlanRequest, watch: Stopwatch, *, cache: PlanCache | None, key: Key | NoKey
) -> Compiled:
    """The plan of this very graph: a kept one is held against it, whatever graph lies beside it in the cache."""
    found = _found(lambda: graph, request, watch, cache=cache, key=key, against=graph)
    return replace(found, graph=graph)


_UNNAMED: Final = NoKey("nothing was asked")


def _kept() -> str:
    """Nothing speaks against keeping a plan."""
    return ""


def _found(  # noqa: PLR0913 - where the graph comes from, where the plan does
    graph: Callable[[], Graph],
    request: PlanRequest,
    watch: Stopwatch,
    *,
    cache: PlanCache | None,
    key: Key | NoKey,
    against: Graph | None = None,
    unkept: Callable[[], str] = _kept,
) -> Compiled:
    def make() -> tuple[Graph, Plan]:
        made = graph()
        watch.run("check", lambda: require_legal(made))
        return made, watch.run("plan", lambda: _prepare(made, request))

    def judged(made: Graph, plan: Plan) -> None:
        watch.run("judge", lambda: judge(against or made, plan, token=request.token))

    found = (cache or PlanCache(None)).plan(key, make, judged, unkept=unkept)
    return Compiled(graph=found.graph, plan=found.plan, seconds=watch.seconds, found=found if cache else None)


def _prepare(graph: Graph, request: PlanRequest) -> Plan:
    return prepare_memory(
        graph,
        mode=request.mode,
        preset=request.preset,
        token=request.token,
        arenas=request.arenas,
        nodes=request.nodes,
    )
