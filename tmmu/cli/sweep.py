"""``tmmu plan --sweep``: from axes to layouts, and each of them planned."""

import gc
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tmmu.cache import PlanCache
from tmmu.cli.options import CaptureOptions, PlanningOptions, RankOptions, TokenOptions
from tmmu.cli.output.progress import progress_bar
from tmmu.cli.parsing import COUNT_MAX, ModelArgument, refuse, require_count
from tmmu.cli.planning import ModelRequest, compile_rank_request, model_request
from tmmu.cli.rank_parsing import require_staged
from tmmu.cli.worker_processes import usable_cores, worker_processes
from tmmu.driver import Compiled, compile_graph, plan_cache
from tmmu.errors import BudgetTooSmall, InvalidConfig
from tmmu.ir.graph import Graph
from tmmu.passes.capture.collection import garbage_collection_off
from tmmu.passes.capture.ranks.schedules import DEFAULT_SCHEDULE, parse_schedule
from tmmu.planner.fit.fit_graph import FitRequest, fit_graph
from tmmu.planner.fit.fit_step import PlanSettings
from tmmu.rank_plans import MAX_KINDS, RankKind, RankPlans, require_world
from tmmu.rank_sweep import FittedRank, Layout, LayoutAxes, LayoutRow, RefusedLayout, layouts_of, sweep
from tmmu.summary.budget import stack_room
from tmmu.summary.plan_summary import memory_of

AXES: Final = ("tp", "pp", "ep", "batch", "microbatches", "checkpoint")
EXAMPLES: Final = "tp, pp, ep=1,8, batch=1,2,4, microbatches=8,16 or checkpoint"
VALUED: Final = ("ep", "batch", "microbatches")
"""Axes whose values are named."""
ANSWERS: Final[Mapping[str, bool]] = {"no": False, "yes": True}
LAYOUTS_MAX: Final = 256
"""So many layouts are planned in one go: each is a trace at least."""
LEVERS: Final = ("takeover", "order", "updates", "recompute")
"""Of ``tmmu fit``, those that a rank's step is fitted by."""
JOBS_MAX: Final = 8
"""Processes that plan at once where nobody says how many: each of a large model takes a gigabyte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRequest:
    """The layouts of one model over ``world`` ranks, and the request that each of them changes."""

    base: ModelRequest
    world: int
    layouts: tuple[Layout, ...]
    room: int | None = None
    """Bytes of a device that steps are made to fit into; ``None`` for steps as they are."""


def sweep_request(  # noqa: PLR0913 - a model, its axes, and the groups of options of a request
    model: ModelArgument,
    axes: Sequence[str],
    capture: CaptureOptions,
    planning: PlanningOptions,
    token: TokenOptions,
    *,
    ranks: RankOptions,
    room: int | None = None,
) -> SweepRequest:
    """The checked request of these options; ``InvalidConfig`` for axes that are none, and without ``--world``."""
    if model.kind != "hf":
        raise InvalidConfig("--sweep: only for an hf: model, which is cut by options", fix="plan each layout by itself")
    if ranks.world is None:
        raise InvalidConfig("--sweep goes with --world", fix="say how many ranks the cluster has")
    refuse({"--fsdp": ranks.fsdp, "--rank": ranks.rank}, "not with --sweep", fix="leave it out: a layout decides it")
    world = require_world(ranks.world)
    whole = replace(ranks, world=None, tp=1, fsdp=world, pp=None, schedule=None, microbatches=None)
    base = model_request(model, capture, planning, token, ranks=whole)
    schedule = parse_schedule(ranks.schedule or DEFAULT_SCHEDULE)
    base = replace(base, capture=replace(base.capture, schedule=str(schedule)))
    values = _parse_axes(axes)
    if "checkpoint" in values and base.capture.mode == "inference":
        raise InvalidConfig("--sweep checkpoint: only with --mode forward or backward", fix="add --mode backward")
    stages = values.get("pp", (require_count(ranks.pp, "--pp") or 1,))
    layouts = layouts_of(
        world,
        LayoutAxes(
            tp=_divisors("tp", world, values.get("tp", (ranks.tp or 1,))),
            pp=[count for count in _divisors("pp", world, stages) if stages or count <= MAX_KINDS],
            stages=schedule.stages,
            ep=values.get("ep", (base.capture.ep,)),
            batch=values.get("batch", (base.capture.batch,)),
            microbatches=values.get("microbatches", (require_count(ranks.microbatches, "--microbatches"),)),
            checkpoint=[bool(answer) for answer in values.get("checkpoint", (base.capture.checkpoint,))],
        ),
    )
    _require_stages(layouts, values, capture, ranks)
    if len(layouts) > LAYOUTS_MAX:
        raise InvalidConfig(f"{len(layouts)} layouts, and {LAYOUTS_MAX} are planned at most", fix="name fewer values")
    if room is not None and base.plan.mode == "forward":
        raise InvalidConfig("--fit: a half of a step is not fitted", fix="use --mode backward")
    return SweepRequest(base=base, world=world, layouts=layouts, room=room)


def _require_stages(
    layouts: Sequence[Layout], values: Mapping[str, object], capture: CaptureOptions, ranks: RankOptions
) -> None:
    """``INVALID_CONFIG`` for options of a pipeline where no layout has one, and for what no stage does."""
    if not layouts:
        raise InvalidConfig("--sweep: no layout of these axes has as many ranks as there are", fix="name other values")
    if any(layout.pp > 1 for layout in layouts):
        require_staged(capture)
        return
    if "microbatches" in values:
        raise InvalidConfig("--sweep microbatches: only with stages", fix="add --sweep pp or --pp")
    refuse(
        {"--schedule": ranks.schedule, "--microbatches": ranks.microbatches},
        "only with stages",
        fix="add --sweep pp or --pp",
    )


def run_sweep(request: SweepRequest, *, jobs: int | None = None) -> Iterator[LayoutRow | RefusedLayout]:
    """A row for each layout, in order, planned by ``jobs`` processes: ``None`` for one per core, 8 at most.

    Layouts that differ in their batch alone are planned by one process. In one process equal graphs have one plan.
    """
    groups: dict[Layout, list[Layout]] = {}
    for layout in request.layouts:
        groups.setdefault(_without_batch(layout), []).append(layout)
    count = min(jobs or min(usable_cores(), JOBS_MAX), len(groups))
    if count == 1:
        yield from sweep(request.layouts, _tools_of(request.base, request.room))
        return
    with worker_processes(count) as pool, progress_bar() as progress:
        futures = {
            group: pool.submit(_rows_of, request.base, request.room, layouts) for group, layouts in groups.items()
        }
        rows: dict[Layout, LayoutRow | RefusedLayout] = {}
        for done, layout in enumerate(request.layouts):
            if layout not in rows:
                progress(f"{done} of {len(request.layouts)} layouts are planned", 0)
                rows.update((row.layout, row) for row in futures[_without_batch(layout)].result())
            yield rows.pop(layout)


def _without_batch(layout: Layout) -> Layout:
    return replace(layout, batch=0)


def _rows_of(base: ModelRequest, room: int | None, layouts: Sequence[Layout]) -> list[LayoutRow | RefusedLayout]:
    """The rows of some layouts, in a process of their own, whose messages are nobody's."""
    with Path(os.devnull).open("w") as nowhere, redirect_stderr(nowhere):
        return [*sweep(layouts, _tools_of(base, room))]


def _tools_of(base: ModelRequest, room: int | None) -> "_RequestTools":
    return _RequestTools(base, plan_cache(reverify=True) if base.cache else PlanCache(None), room)


@dataclass(frozen=True, slots=True)
class _RequestTools:
    """Plans layouts of a request."""

    base: ModelRequest
    cache: PlanCache
    room: int | None

    def compile_layout(self, layout: Layout) -> RankPlans:
        """The plans of all kinds of ranks."""
        gc.collect()  # a command collects nothing by itself, and each layout has a model of its own
        capture = replace(self.base.capture, **{name: getattr(layout, name) for name in Layout.__slots__})
        return compile_rank_request(replace(self.base, capture=capture), self.cache)

    def plan_graph(self, graph: Graph) -> Compiled:
        """A plan that is not kept: the graph is no trace."""
        with garbage_collection_off():
            return compile_graph(graph, self.base.plan)

    def fit_rank(self, kind: RankKind, compiled: Compiled, others: int) -> FittedRank | None:
        """By levers that repeat no call between ranks, keep their order, and need no trial on a device."""
        room = self.room
        if room is None or kind.planned <= room or others > room:
            return None
        plan = self.base.plan
        settings = PlanSettings(preset=compiled.plan.preset, token=plan.token, mode=compiled.plan.mode, budget=room)
        try:
            request = FitRequest(
                limit=stack_room(compiled.plan, compiled.graph, room, 0),
                at_most=None,
                levers=LEVERS,
                arenas=plan.arenas,
                settings=settings,
            )
            fitting = fit_graph(compiled.graph, compiled.plan, request)
        except BudgetTooSmall:
            return None
        fitted = fitting.fitted
        planned = memory_of(fitted.plan, fitted.graph).total
        return FittedRank(planned=planned, reruns=fitted.reruns, extra_flops=fitted.flops)


def _parse_axes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """By axis, its values: none for all divisors of the ranks, and 0 and 1 for no and yes."""
    axes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, equals, listed = text.partition("=")
        if name not in AXES:
            raise InvalidConfig(f"--sweep {text!r} names no axis", fix=f"give {EXAMPLES}")
        if name in axes:
            raise InvalidConfig(f"--sweep: {name} is given twice", fix="give all its values at once, as in batch=1,2,4")
        axes[name] = _parse_values(name, listed) if equals else _values_of(name)
    return axes


def _values_of(name: str) -> tuple[int, ...]:
    """The values of an axis that is named alone."""
    if name in VALUED:
        raise InvalidConfig(f"--sweep {name} has no values of its own", fix=f"give some, as in {name}=1,2,4")
    return (False, True) if name == "checkpoint" else ()


def _parse_values(name: str, listed: str) -> tuple[int, ...]:
    values: dict[int, None] = {}
    for text in listed.split(","):
        is_number = text.isascii() and text.isdecimal() and len(text) < 10
        number = ANSWERS.get(text) if name == "checkpoint" else (int(text) if is_number else None)
        if number is None or (name != "checkpoint" and not 1 <= number <= COUNT_MAX):
            example = "no,yes" if name == "checkpoint" else "1,2,4"
            raise InvalidConfig(f"--sweep {name}: {text!r:.40} is no value of it", fix=f"for example {name}={example}")
        values[number] = None
    return tuple(values)


def _divisors(name: str, world: int, values: Sequence[int]) -> tuple[int, ...]:
    """The values, or all divisors where there are none; ``InvalidConfig`` for one that is no divisor."""
    for value in values:
        if world % value:
            raise InvalidConfig(f"--sweep {name}: {value} does not divide {world} ranks", fix="name divisors")
    return tuple(values) or tuple(number for number in range(1, world + 1) if world % number == 0)
