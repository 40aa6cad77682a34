"""Is a packing what it claims to be? From the problem and the offsets alone, by a sweep over time."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import accumulate

from tmmu.errors import PlanUnsound
from tmmu.ir.fault import Fault, faults_field, headline
from tmmu.ir.problem import PackProblem


def require_sound_packing(problem: PackProblem, offset: Sequence[int], *, peak: int, bound: int) -> None:
    """Returns where no byte is shared, every offset may be what it is, and the numbers are true; ``PlanUnsound`` else.

    Knows nothing of how offsets were found. O(n log n) but for short memory moves.
    """
    faults = tuple(packing_faults(problem, offset, peak=peak, bound=bound))
    if faults:
        raise PlanUnsound(
            headline(faults), fix="this is a fault of tmmu: report it", count=len(faults), faults=faults_field(faults)
        )


def packing_faults(problem: PackProblem, offset: Sequence[int], *, peak: int, bound: int) -> Iterator[Fault]:
    """Everything that is wrong, by rule: ``offsets``, ``overlap``, ``peak``, ``bound``."""
    if len(offset) != len(problem):
        yield Fault(rule="offsets", what=f"{len(offset)} offsets for {len(problem)} items")
        return
    yield from _wrong_offsets(problem, offset)
    for one, other in overlapping_pairs(problem, offset):
        yield Fault(rule="overlap", what=f"items {one} and {other} share bytes at {problem.birth[other]}")
    top = max((offset[item] + problem.size[item] for item in nonempty_items(problem)), default=0)
    if peak != top:
        yield Fault(rule="peak", what=f"the peak is {top}, not {peak}")
    if not most_live_bytes(problem) <= bound <= peak:
        yield Fault(
            rule="bound", what=f"{bound} is no bound: {most_live_bytes(problem)} live at once, the peak is {peak}"
        )


def _wrong_offsets(problem: PackProblem, offset: Sequence[int]) -> Iterator[Fault]:
    for item, (found, step, given) in enumerate(zip(offset, problem.alignment, problem.fixed, strict=True)):
        if given >= 0:
            if found != given:
                yield Fault(rule="offsets", what=f"item {item} is at {found}, not at {given} as given")
        elif found < 0 or found % step:
            yield Fault(rule="offsets", what=f"item {item} is at {found}, no multiple of {step}")


def nonempty_items(problem: PackProblem) -> list[int]:
    """Items that hold a byte at some moment; the others conflict with nothing."""
    columns = zip(problem.size, problem.birth, problem.death, strict=True)
    return [item for item, (size, birth, death) in enumerate(columns) if size > 0 and birth < death]


def overlapping_pairs(problem: PackProblem, offset: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(older, newer) pairs that share a byte at some moment: each item, at its birth, against its neighbours in space.

    Nothing where the packing is sound; at least one pair where it is not.
    """
    alive: list[tuple[int, int]] = []
    dying: list[tuple[int, int]] = []
    for item in sorted(nonempty_items(problem), key=lambda i: (problem.birth[i], offset[i], i)):
        while dying and dying[0][0] <= problem.birth[item]:
            dead = heappop(dying)[1]
            del alive[bisect_left(alive, (offset[dead], dead))]
        at = bisect_left(alive, (offset[item], item))
        if at and offset[alive[at - 1][1]] + problem.size[alive[at - 1][1]] > offset[item]:
            yield alive[at - 1][1], item
        if at < len(alive) and offset[item] + problem.size[item] > alive[at][0]:
            yield alive[at][1], item
        alive.insert(at, (offset[item], item))
        heappush(dying, (problem.death[item], item))


def most_live_bytes(problem: PackProblem) -> int:
    """The most bytes live at once: no arena that holds the items is smaller."""
    change: dict[int, int] = {}
    for item in nonempty_items(problem):
        change[problem.birth[item]] = change.get(problem.birth[item], 0) + problem.size[item]
        change[problem.death[item]] = change.get(problem.death[item], 0) - problem.size[item]
    return max(accumulate(change[time] for time in sorted(change)), default=0)
