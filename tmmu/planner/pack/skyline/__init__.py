"""Skyline packing: beam search over the order in which items are placed on the skyline, under a falling cap.

Deterministic, and bounded by counted work: the answer depends on neither time, threads nor the order of the rows.
Compiled where numba is installed; without it the same answers take some hundred times as long.
"""

from tmmu.ir.problem import PackProblem
from tmmu.planner.pack.exact.instance import SearchInstance, prepare_instances
from tmmu.planner.pack.skyline.progress import Report

__all__ = ["Report", "lower_packing"]


def lower_packing(
    problem: PackProblem, offset: tuple[int, ...], *, goal: int, work: int, report: Report | None = None
) -> tuple[tuple[int, ...], int]:
    """(offsets no higher than the sound ``offset``, work spent): parts in time by load, each down to ``goal`` at most.

    No offset is fixed; every item has bytes and a span.
    """
    from tmmu.planner.pack.skyline.restarts import lower_peak  # noqa: PLC0415  compiles

    lower = list(offset)
    spent = 0
    for part in sorted(prepare_instances(problem), key=lambda part: (-part.bound, part.row)):
        peak = _peak_of(part, lower)
        if peak > goal and part.fits_word:
            floor = max(goal, part.bound)
            found = lower_peak(part, -(-peak // part.unit), -(-floor // part.unit), work - spent, report)
            spent += found.work
            if found.offset:
                for row, low in zip(part.row, found.offset, strict=True):
                    lower[row] = low * part.unit
        goal = max(goal, _peak_of(part, lower))
    return tuple(lower), spent


def _peak_of(part: SearchInstance, offset: list[int]) -> int:
    return max(offset[row] + size for row, size in zip(part.row, part.bytes, strict=True))
