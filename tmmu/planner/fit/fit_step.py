"""A plan of a step whose stack takes no more than some bytes, at the least cost that the curve has for it.

Points of the curve, and those between the two that a limit lies between, are taken in the order of their cost. What a
point drops in vain is kept again; the rewrite is
rebuilt and planned; where packing needs more than was live, the next point has its turn. Both judges pass what is
returned. Less room never yields more bytes: points depend on no limit, and each has one plan.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise
from typing import Final

import numpy as np

from tmmu.ir.fit import AGAIN, FitRecord, fit_cost
from tmmu.ir.graph import HOST, Graph
from tmmu.ir.plan import ArenaSpec, Plan, segment_bytes
from tmmu.ir.rebuild import rebuild_graph
from tmmu.ir.rewrite import PARTIAL_KINDS, SUBLIST, Rewrite
from tmmu.judge.check import judge
from tmmu.judge.rewrite.check import near_rules, require_meaning
from tmmu.judge.rules import require_legal
from tmmu.planner.fit.between.points_between import fine_points
from tmmu.planner.fit.curve import CurvePoint, StepCurve
from tmmu.planner.fit.forms import ORDER, PARTS, RECOMPUTE, TAKEOVER, UPDATES
from tmmu.planner.fit.orders import ORDERS
from tmmu.planner.fit.rematerialize import rematerialize
from tmmu.planner.fit.search import Point, Search
from tmmu.planner.prepare import prepare_memory

MOST_PLANS: Final = 32
"""Points that are planned before the answer is that nothing fits."""
OVERWRITING: Final = {"train_full": "remat_enabled"}
"""By preset, the one that differs in takeovers alone."""

PPM: Final = 1_000_000
NODES: Final = 5_000
"""Of an exact search for offsets, where packing misses what is live."""
NODE_ITEMS: Final = 3_000
"""Of a step with more buffers, proportionally fewer nodes are searched."""
MORE_NODES: Final = 20_000
"""Of a second search, where what is taken for a time still takes more than ``TIGHT`` and has no more buffers."""
TIGHT: Final = 1_005_000
"""Parts per million of the live bytes."""
MOST_OTHERS: Final = 3
ALIKE: Final = 1_001_000
"""Parts per million of the live bytes of a point that packs badly: those below do as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedStep:
    """A plan, with its key ``fit``, of the graph that ``rewrite`` makes of the base.

    ``live``: bytes at the fullest position; ``time`` and ``flops``: what it takes more, picoseconds by the roofline and
    counted; ``reruns``: ops that run again.
    """

    rewrite: Rewrite
    graph: Graph
    plan: Plan
    order: str
    live: int
    time: int
    flops: int
    reruns: int

    @property
    def stack_bytes(self) -> int:
        """Of the plan."""
        return segment_bytes(self.plan.arenas, "stack")

    @property
    def host_bytes(self) -> int:
        """Of values that the step keeps in host memory for a while, each in bytes of its own."""
        buffers = self.graph.buffers
        return sum(size for size, role in zip(buffers.bytes, buffers.role, strict=True) if role == HOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """What a plan depends on beside the graph; ``budget``: what it is said to be for.

    ``mode``: that of the plan as it is, which a step of the user's without gradients has too; by default the graph's.
    """

    preset: str
    token: bytes
    mode: str | None = None
    budget: int | None = None
    search_nodes: int = 0


def fit_step(curve: StepCurve, limit: int, settings: PlanSettings) -> FittedStep | None:
    """The step in at most ``limit`` bytes of stack; ``None`` where no point of the curve has a plan that small.

    Both judges have passed it.
    """
    points = fine_points(curve, lambda point: point.peak > limit)
    within = (pair for pair in _with_next_peak(points) if pair[0].peak <= limit)
    for point, below in islice(within, MOST_PLANS):
        fitted = plan_point(curve, point, below, settings)
        if fitted.stack_bytes <= limit:
            return judge_step(curve, fitted, settings)
    return None


def _with_next_peak(points: Iterable[CurvePoint]) -> Iterator[tuple[CurvePoint, int]]:
    """Each with the bytes of the one after it, the last one with none."""
    for point, following in pairwise(chain(points, (None,))):
        assert point is not None
        yield point, 0 if following is None else following.peak


def fit_within(curve: StepCurve, time: int, settings: PlanSettings) -> FittedStep | None:
    """The step in the fewest bytes for at most ``time`` picoseconds more; ``None`` where every point takes longer.

    Where packing misses what is live, points of the curve that take less time and hardly more bytes are planned too, up
    to ``MOST_OTHERS``; where it misses that by much, what is best is searched once more.
    """
    if curve.points[0].time > time:
        return None
    point, below = next(_with_next_peak(fine_points(curve, lambda point: point.time <= time)))
    best = plan_point(curve, point, below, settings)
    failed, others = best.live, 0
    for place in reversed(range(bisect_left(curve.points, point.time, key=lambda point: point.time))):
        peak = curve.points[place].peak
        if peak >= best.stack_bytes or others == MOST_OTHERS:
            break
        if peak * PPM > failed * ALIKE:
            other, others, failed = fit_point(curve, place, settings), others + 1, peak
            best = other if other.stack_bytes < best.stack_bytes else best
    return judge_step(curve, _packed_again(curve, best, settings), settings)


def _packed_again(curve: StepCurve, fitted: FittedStep, settings: PlanSettings) -> FittedStep:
    """The same, searched longer where its plan misses what is live by much, and is small enough for that."""
    is_tight = fitted.stack_bytes * PPM <= fitted.live * TIGHT
    if is_tight or len(fitted.graph.buffers) > NODE_ITEMS or settings.search_nodes >= MORE_NODES:
        return fitted
    plan = plan_of_step(curve, fitted.graph, replace(settings, search_nodes=MORE_NODES))
    again = replace(fitted, plan=replace(plan, fit=fitted.plan.fit))
    return again if again.stack_bytes < fitted.stack_bytes else fitted


def judge_step(curve: StepCurve, fitted: FittedStep, settings: PlanSettings) -> FittedStep:
    """The same, once both judges have passed it."""
    allowed = near_rules(fitted.rewrite) if curve.near else frozenset[str]()
    require_meaning(curve.base, fitted.graph, fitted.rewrite, near=allowed)
    judge(fitted.graph, fitted.plan, token=settings.token)
    return fitted


def fit_point(curve: StepCurve, place: int, settings: PlanSettings) -> FittedStep:
    """The plan of a point of the curve, which stays above the next one; not judged yet."""
    point, below = next(_with_next_peak(curve.points[place:]))
    return plan_point(curve, point, below, settings)


def plan_point(curve: StepCurve, point: CurvePoint, below: int, settings: PlanSettings) -> FittedStep:
    """The plan of a point of a frame of the curve, in more bytes than ``below``."""
    frame = curve.frames[point.frame]
    search = Search(table=frame.table)
    kept = keep_again(search, point.point, below)
    rewrite = rematerialize(frame.rewrite, frame.form.facts, search.rows(kept))
    graph = rebuild_graph(curve.base, rewrite)
    require_legal(graph)
    time = frame.time + kept.time
    record = FitRecord(
        rewrite=rewrite,
        cost=fit_cost(graph, rewrite, time_ppm=max(0, time * PPM // max(1, curve.time))),
        budget_bytes=settings.budget,
        levers=_levers(curve, frame.order, rewrite, kept),
        near=tuple(sorted(near_rules(rewrite))),
    )
    return FittedStep(
        rewrite=rewrite,
        graph=graph,
        plan=replace(plan_of_step(curve, graph, settings), fit=record),
        order=frame.order,
        live=kept.peak,
        time=time,
        flops=frame.flops + kept.flops,
        reruns=sum(kind in AGAIN for kind in rewrite.kind),
    )


def _levers(curve: StepCurve, order: str, rewrite: Rewrite, point: Point) -> tuple[str, ...]:
    """Those that the step shows; of takeovers the plan says which there are."""
    shown = {
        ORDER: order != ORDERS[0][0],
        UPDATES: SUBLIST in rewrite.kind,
        PARTS: not set(PARTIAL_KINDS).isdisjoint(rewrite.kind),
        RECOMPUTE: point.time > 0,
    }
    return tuple(name for name in curve.levers if shown.get(name, True))


def plan_of_step(curve: StepCurve, graph: Graph, settings: PlanSettings) -> Plan:
    """The plan of a form of the curve's step, with takeovers where that lever is pulled; not judged yet.

    Packed with a short exact search where packers miss what is live.
    """
    if TAKEOVER in curve.levers:
        settings = replace(settings, preset=OVERWRITING.get(settings.preset, settings.preset))
    return plan_alike(graph, curve.arenas, settings)


def plan_alike(graph: Graph, arenas: tuple[ArenaSpec, ...], settings: PlanSettings) -> Plan:
    """The plan of a step in the settings' own preset, searched as all fitted ones are; not judged yet."""
    return prepare_memory(
        graph,
        mode=settings.mode or step_mode(graph),
        preset=settings.preset,
        token=settings.token,
        arenas=arenas,
        search_nodes=max(settings.search_nodes, NODES * NODE_ITEMS // max(NODE_ITEMS, len(graph.buffers))),
    )


def step_mode(graph: Graph) -> str:
    """The mode that runs all ops of a graph whose training ops are traced, or that has none."""
    return "backward" if any(stage != "forward" for stage in graph.ops.stage) else "inference"


def keep_again(search: Search, point: Point, below: int) -> Point:
    """The point without what it drops in vain: no more bytes, more than ``below``, and less time. Small ones first."""
    state = np.frombuffer(point.dropped, dtype=np.int8).astype(np.int64)
    gaps = [int(gap) for gap in np.flatnonzero(state) if not search.table.last_use[gap]]
    size, buffer = search.table.cells.size, search.table.cells.touch_of
    for gap in sorted(gaps, key=lambda g: (int(size[buffer[g]]), g)):
        state[gap] = 0
        trial = search.point(state) if search.schedule(state) else point
        if below < trial.peak <= point.peak and trial.time < point.time:
            point = trial
        else:
            state[gap] = 1
    return point
