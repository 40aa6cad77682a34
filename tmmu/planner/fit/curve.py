"""The curve of a step: how few bytes its stack may take, by the time that it costs.

A *frame* is the step in one form and one order, with nothing run again; what may be run again is searched for in each
frame, and the points of all frames that no other one undercuts are the curve. It depends on the step and the levers
alone, not on a budget, so that less budget never takes more bytes.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tmmu.ir.graph import GRADIENT, Graph
from tmmu.ir.plan import ArenaSpec
from tmmu.ir.rebuild import rebuild_graph
from tmmu.ir.rewrite import SAME, Rewrite
from tmmu.planner.fit.compose import compose
from tmmu.planner.fit.early_updates import SMALLEST_GROUP, early_updates
from tmmu.planner.fit.head_parts import head_parts
from tmmu.planner.fit.orders import ORDERS, as_it_is, row_uses
from tmmu.planner.fit.search import Point, Search, block_boundaries
from tmmu.planner.fit.step_table import StepTable, step_table
from tmmu.planner.pack.exact.jit import make_cells

TAKEOVER: Final = "takeover"
ORDER: Final = "order"
UPDATES: Final = "updates"
PARTS: Final = "parts"
RECOMPUTE: Final = "recompute"
LEVERS: Final[tuple[tuple[str, str], ...]] = (
    (TAKEOVER, "results take over the bytes of operands that die"),
    (ORDER, "ops run in another order"),
    (UPDATES, "each weight is updated right after its gradient"),
    (PARTS, "head and loss run on some rows at a time"),
    (RECOMPUTE, "what is needed again is computed again"),
)
"""Least harm first: a name, and what it does. None changes a bit of what the step computes, unless what is only near is
allowed: then the gradient of the head's weights is summed over parts.
"""
HEAD_PARTS: Final = (8, 16)
"""Parts that a head is cut in, at least: fewer read the weights less often."""
MOST_WORK: Final = 16_000_000
"""Rows of schedules after which no further frame is searched; frames that start with the fewest bytes come first."""
MUCH_LESS: Final = 0.95
LITTLE_TIME: Final = 1 / 500
"""A form of the step that takes this share of another's bytes, for no more than this share of its time more, is the one
that is searched.
"""
LEVER_NAMES: Final = tuple(name for name, _ in LEVERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The step as ``rewrite`` makes it; ``time`` and ``flops`` are what it takes more than the base."""

    order: str
    rewrite: Rewrite
    graph: Graph
    time: int
    flops: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Bytes at the fullest position; extra picoseconds by the roofline, and FLOPs; how: a frame, a point of its search.

    ``time`` may be negative where a frame does less than the base.
    """

    peak: int
    time: int
    flops: int
    frame: int
    point: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCurve:
    """``points`` rise in time and fall in bytes; ``time`` and ``flops`` are those of the base."""

    base: Graph
    arenas: tuple[ArenaSpec, ...]
    levers: tuple[str, ...]
    near: bool
    time: int
    flops: int
    frames: tuple[Frame, ...]
    points: tuple[CurvePoint, ...]
    work: int
    """Rows of all schedules that were made."""


def step_curve(base: Graph, arenas: Sequence[ArenaSpec], levers: Collection[str], *, near: bool = False) -> StepCurve:
    """The curve of a legal graph with calls, with these levers alone. Deterministic; seconds for thousands of ops.

    ``near``: rewrites that have other bits than the step are allowed.
    """
    return StepFrames.of(base, arenas, levers, near=near).curve(again=RECOMPUTE in levers)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFrames:
    """All frames of a step, which its curves with and without what runs again share."""

    base: Graph
    arenas: tuple[ArenaSpec, ...]
    levers: tuple[str, ...]
    near: bool
    plain: StepTable
    starts: "tuple[_Start, ...]"

    @classmethod
    def of(
        cls, base: Graph, arenas: Sequence[ArenaSpec], levers: Collection[str], *, near: bool = False
    ) -> "StepFrames":
        """Arguments as of ``step_curve``."""
        return cls(
            base=base,
            arenas=tuple(arenas),
            levers=tuple(name for name, _ in LEVERS if name in levers and name != RECOMPUTE),
            near=near,
            plain=_table(base, arenas, levers, identity_rewrite(base)),
            starts=tuple(_Start.of(base, arenas, levers, *named) for named in _rewrites(base, levers, near=near)),
        )

    def curve(self, *, again: bool) -> StepCurve:
        """``again``: with what may run again, else the frames alone."""
        plain, starts = self.plain, self.starts
        points, work = list[CurvePoint](), 0
        for place in sorted(range(len(starts)), key=lambda place: (starts[place].point.peak, place)):
            start = starts[place]
            is_beaten = any(start.is_beaten_by(other, plain.time) for other in starts)
            is_searched = again and work < MOST_WORK and not is_beaten
            time, flops = start.search.table.time - plain.time, start.search.table.flops - plain.flops
            before = start.search.work
            for point in _searched(start.search) if is_searched else (start.point,):
                both = {"time": time + point.time, "flops": flops + point.flops}
                points.append(CurvePoint(peak=point.peak, frame=place, point=point, **both))
            work += start.search.work - before
        return StepCurve(
            base=self.base,
            arenas=self.arenas,
            levers=(*self.levers, RECOMPUTE) if again else self.levers,
            near=self.near,
            time=plain.time,
            flops=plain.flops,
            frames=tuple(start.frame(plain) for start in starts),
            points=_undercut_by_none(points),
            work=work,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """A frame before anything runs again."""

    order: str
    rewrite: Rewrite
    search: Search
    point: Point

    @classmethod
    def of(
        cls, base: Graph, arenas: Sequence[ArenaSpec], levers: Collection[str], order: str, rewrite: Rewrite
    ) -> "_Start":
        """Rebuilds it, and makes its one schedule."""
        search = Search(table=_table(rebuild_graph(base, rewrite), arenas, levers, rewrite))
        state = search.start()
        search.schedule(state)
        return cls(order=order, rewrite=rewrite, search=search, point=search.point(state))

    def frame(self, plain: StepTable) -> Frame:
        """What the curve keeps of it."""
        table = self.search.table
        return Frame(
            order=self.order,
            rewrite=self.rewrite,
            graph=table.graph,
            time=table.time - plain.time,
            flops=table.flops - plain.flops,
        )

    def is_beaten_by(self, other: "_Start", base_time: int) -> bool:
        """Whether another form in the same order takes much less bytes for hardly more time."""
        more_time = other.search.table.time - self.search.table.time
        return (
            other.order == self.order
            and other.point.peak < MUCH_LESS * self.point.peak
            and more_time <= LITTLE_TIME * base_time
        )


def frame_table(curve: StepCurve, frame: int) -> StepTable:
    """The table in which a frame was searched."""
    return _table(curve.frames[frame].graph, curve.arenas, curve.levers, curve.frames[frame].rewrite)


def _table(graph: Graph, arenas: Sequence[ArenaSpec], levers: Collection[str], rewrite: Rewrite) -> StepTable:
    table = step_table(graph, arenas, may_rerun=[kind == SAME for kind in rewrite.kind])
    if TAKEOVER in levers:
        return table
    return replace(table, cells=table.cells._replace(over_at=make_cells([0] * len(table.cells.over_at))))


def identity_rewrite(base: Graph) -> Rewrite:
    """The rewrite that changes nothing."""
    ops = base.ops.ids
    return Rewrite(base_hash=base.ir_hash, origin=tuple(ops), kind=(SAME,) * len(ops), part=((),) * len(ops))


def _rewrites(base: Graph, levers: Collection[str], *, near: bool) -> Iterator[tuple[str, Rewrite]]:
    """By name of the order; of each form of the step each order once."""
    for form in _forms(base, levers, near=near):
        graph = rebuild_graph(base, form)
        updated = early_updates(graph, smallest=_smallest_group(base)) if UPDATES in levers else identity_rewrite(graph)
        rewrite = compose(base, form, updated)
        uses = row_uses(rebuild_graph(base, rewrite))
        seen = set[tuple[int, ...]]()
        for name, order in ORDERS:
            rows = order(uses)
            if rows not in seen and (ORDER in levers or order is as_it_is):
                seen.add(rows)
                yield name, _permuted(rewrite, rows)


def _forms(base: Graph, levers: Collection[str], *, near: bool) -> Iterator[Rewrite]:
    """The step as it is, and with its head in parts."""
    whole = identity_rewrite(base)
    yield whole
    if PARTS in levers:
        cut = dict.fromkeys(head_parts(base, count, near=near) for count in HEAD_PARTS)
        yield from (parts for parts in cut if parts != whole)


def _smallest_group(base: Graph) -> int:
    """Bytes of a group of parameters: a hundredth of all gradients, where that is less than usual."""
    gradients = (b for b, role in zip(base.buffers.bytes, base.buffers.role, strict=True) if role == GRADIENT)
    return min(SMALLEST_GROUP, max(1, sum(gradients) // 100))


def _permuted(rewrite: Rewrite, rows: Sequence[int]) -> Rewrite:
    return replace(
        rewrite,
        origin=tuple(rewrite.origin[row] for row in rows),
        kind=tuple(rewrite.kind[row] for row in rows),
        part=tuple(rewrite.part[row] for row in rows),
    )


def _searched(search: Search) -> Iterator[Point]:
    """What a frame's searches pass through."""
    yield from search.shave(search.start())
    boundaries = block_boundaries(search.table)
    if boundaries:
        yield from search.shave(search.start(boundaries))


def _undercut_by_none(points: Sequence[CurvePoint]) -> tuple[CurvePoint, ...]:
    best = list[CurvePoint]()
    for point in sorted(points, key=lambda p: (p.time, p.peak, p.flops, p.frame, p.point.dropped)):
        if not best or point.peak < best[-1].peak:
            best.append(point)
    return tuple(best)
