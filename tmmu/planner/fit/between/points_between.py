"""Points between two neighbours of a curve, for a limit that lies between them.

A search takes what frees the most bytes for its time, however much that is at once, so that its next point may be far
off. Between the two there are states that drop less: from the first point on, what takes less time than its neighbour;
from the second one back, what was dropped before it is kept again, the dearest for its bytes first.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Final

import numpy as np

from tmmu.planner.fit.curve import CurvePoint, Frame, StepCurve, undercut_by_none
from tmmu.planner.fit.forms import RECOMPUTE
from tmmu.planner.fit.search import Gaps, Point, Search

DEPTH: Final = 4
"""So often points are found between points that were found between others."""
NARROW: Final = 10_000
"""Neighbours less than one in so many parts of the step's time apart have nothing between them."""
PARTS: Final = 32
"""What is kept again at once takes at least one in so many parts of the time between the two."""
MOST_TRIES: Final = 96
"""Schedules from either side."""


def fine_points(curve: StepCurve, is_before: Callable[[CurvePoint], bool]) -> Iterator[CurvePoint]:
    """The points of the curve and those between them, in order, from the last one on for which ``is_before`` holds.

    ``is_before``: holds from the first point up to some point. What is yielded depends on the curve alone; where that
    begins, on ``is_before``. Points between two are made when the walk comes to them; there are none without
    ``RECOMPUTE``, as they run ops again.
    """
    depth = DEPTH if RECOMPUTE in curve.levers else 0
    for low, high in pairwise(curve.points):
        yield from _walk(curve, low, high, is_before, depth)
    yield curve.points[-1]


def _walk(
    curve: StepCurve, low: CurvePoint, high: CurvePoint, is_before: Callable[[CurvePoint], bool], depth: int
) -> Iterator[CurvePoint]:
    """The first of two neighbours and what is between them, unless the second one is before all that is yielded."""
    if is_before(high):
        return
    inside = points_between(curve, low, high) if depth else ()
    if not inside:
        yield low
    else:
        for pair in pairwise((low, *inside, high)):
            yield from _walk(curve, *pair, is_before, depth - 1)


def points_between(curve: StepCurve, low: CurvePoint, high: CurvePoint) -> tuple[CurvePoint, ...]:
    """Those that take less time than ``high`` and fewer bytes than ``low``, in order. O(rows x ``MOST_TRIES``)."""
    if (high.time - low.time) * NARROW <= curve.time:
        return ()
    points = chain(_onward(curve, low, high), _backward(curve, low, high))
    inside = [p for p in points if low.time < p.time < high.time and high.peak < p.peak < low.peak]
    return undercut_by_none(inside)


def _onward(curve: StepCurve, low: CurvePoint, high: CurvePoint) -> Iterator[CurvePoint]:
    """From the first point on, what takes less time than the second."""
    frame = curve.frames[low.frame]
    search = Search(table=frame.table)
    most_time = high.time - frame.time - 1
    for tries, point in enumerate(search.shave(state_of(low.point), pace=lambda _: 0, most_time=most_time)):
        yield curve_point(frame, low.frame, point)
        if point.peak <= high.peak or tries == MOST_TRIES:
            return


def _backward(curve: StepCurve, low: CurvePoint, high: CurvePoint) -> Iterator[CurvePoint]:
    """From the second point back, what was dropped at the first one too kept again."""
    frame = curve.frames[high.frame]
    search, point, state = Search(table=frame.table), high.point, state_of(high.point)
    queue = _dearest_first(curve, low, high)
    for _ in range(MOST_TRIES):
        some = _some(queue, (high.time - low.time) // PARTS)
        if not some or frame.time + point.time <= low.time:
            return
        for tried in (some, some[:1])[: min(len(some), 2)]:
            trial = state.copy()
            trial[[gap for gap, _ in tried]] = 0
            if search.schedule(trial) and (kept := search.point(trial)).time < point.time and kept.peak < low.peak:
                state, point = trial, kept
                yield curve_point(frame, high.frame, point)
                queue = queue[len(tried) :]
                break
        else:
            queue = queue[1:]


def _some(queue: Sequence[tuple[int, int]], least: int) -> Sequence[tuple[int, int]]:
    """The first of the queue that together take the least time."""
    total = 0
    for place, (_, time) in enumerate(queue):
        total += time
        if total >= least:
            return queue[: place + 1]
    return queue


def _dearest_first(curve: StepCurve, low: CurvePoint, high: CurvePoint) -> list[tuple[int, int]]:
    """Gaps that the second point drops and the first one too, each with the time of its rows, which is less than what
    is between the two: all else would lead back to the first point.
    """
    table, before = curve.frames[high.frame].table, curve.frames[low.frame]
    dropped = (state_of(high.point) == 1) & ~table.last_use
    if before.form is curve.frames[high.frame].form:
        dropped &= np.isin(table.gap, before.table.gap[state_of(low.point) == 1])
    cells, facts = table.cells, table.facts
    group_time = [sum(int(facts.row_time[facts.twins.get(op, op)]) for op in group.ops) for group in facts.groups]
    gaps = []
    for gap in map(int, np.flatnonzero(dropped)):
        buffer = cells.touch_of[gap]
        time, size = group_time[cells.group_of[buffer]], int(cells.size[buffer])
        if 0 < time < high.time - low.time:
            gaps.append((-time / max(1, size), gap, time))
    return [(gap, time) for _, gap, time in sorted(gaps)]


def state_of(point: Point) -> Gaps:
    """What a point drops, as a search takes it."""
    return np.frombuffer(point.dropped, dtype=np.int8).astype(np.int64)


def curve_point(frame: Frame, place: int, point: Point) -> CurvePoint:
    """A point of a frame's search, as the curve has it."""
    return CurvePoint(
        peak=point.peak, time=frame.time + point.time, flops=frame.flops + point.flops, frame=place, point=point
    )
