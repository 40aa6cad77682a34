"""A plan of a step whose stack takes no more than some bytes, at the least cost that the curve has for it.

Points of the curve are taken in the order of their cost. What a point drops in vain is kept again; the rewrite is
rebuilt and planned; where packing needs more than was live, the next point has its turn. Both judges pass what is
returned. Less room never yields more bytes: points depend on no limit, and each has one plan.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan, segment_bytes
from tmmu.ir.rebuild import rebuild_graph
from tmmu.ir.rewrite import RERUN, TWIN, Rewrite
from tmmu.judge.check import judge
from tmmu.judge.rewrite.check import require_meaning
from tmmu.judge.rules import require_legal
from tmmu.planner.fit.curve import TAKEOVER, CurvePoint, StepCurve, frame_table
from tmmu.planner.fit.rematerialize import rematerialize
from tmmu.planner.fit.search import Point, Search
from tmmu.planner.prepare import prepare_memory

MOST_PLANS: Final = 32
"""Points that are planned before the answer is that nothing fits."""
OVERWRITING: Final = {"train_full": "remat_enabled"}
"""By preset, the one that differs in takeovers alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedStep:
    """A judged plan of the graph that ``rewrite`` makes of the base; what it takes more: picoseconds, FLOPs, bytes.

    ``rewritten_bytes``: what is written again.
    """

    rewrite: Rewrite
    graph: Graph
    plan: Plan
    order: str
    live: int
    time: int
    flops: int
    reruns: int
    rewritten_bytes: int

    @property
    def stack_bytes(self) -> int:
        """Of the plan."""
        return segment_bytes(self.plan.arenas, "stack")


def fit_step(curve: StepCurve, limit: int, *, preset: str, token: bytes) -> FittedStep | None:
    """The step in at most ``limit`` bytes of stack; ``None`` where no point of the curve has a plan that small."""
    tries = [place for place, point in enumerate(curve.points) if point.peak <= limit][:MOST_PLANS]
    for place in tries:
        below = curve.points[place + 1].peak if place + 1 < len(curve.points) else 0
        fitted = fit_point(curve, curve.points[place], below, preset=preset, token=token)
        if fitted.stack_bytes <= limit:
            require_meaning(curve.base, fitted.graph, fitted.rewrite)
            judge(fitted.graph, fitted.plan, token=token)
            return fitted
    return None


def fit_point(curve: StepCurve, point: CurvePoint, below: int, *, preset: str, token: bytes) -> FittedStep:
    """The plan of a point, which stays above ``below`` bytes; not judged yet."""
    frame = curve.frames[point.frame]
    search = Search(table=frame_table(curve, point.frame))
    kept = keep_again(search, point.point, below)
    rewrite = rematerialize(frame.rewrite, frame.graph, search.rows(kept))
    graph = rebuild_graph(curve.base, rewrite)
    require_legal(graph)
    preset = OVERWRITING.get(preset, preset) if TAKEOVER in curve.levers else preset
    again = [op for op, kind in enumerate(rewrite.kind) if kind in (RERUN, TWIN)]
    return FittedStep(
        rewrite=rewrite,
        graph=graph,
        plan=prepare_memory(graph, mode=step_mode(graph), preset=preset, token=token, arenas=curve.arenas),
        order=frame.order,
        live=kept.peak,
        time=frame.time + kept.time,
        flops=frame.flops + kept.flops,
        reruns=len(again),
        rewritten_bytes=sum(_written_bytes(graph, op) for op in again),
    )


def step_mode(graph: Graph) -> str:
    """The mode that runs all ops of a graph whose training ops are traced, or that has none."""
    return "backward" if any(stage != "forward" for stage in graph.ops.stage) else "inference"


def _written_bytes(graph: Graph, op: int) -> int:
    buffers = {graph.values.buffer[value] for value in graph.ops.writes[op]}
    return sum(graph.buffers.bytes[buffer] for buffer in buffers)


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
