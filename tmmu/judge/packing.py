"""Whether a packing is what it claims to be, from the problem and the offsets alone, by a sweep over time.

State of the sweep: the items that live now, sorted by offset. While no two of them share a byte, a newcomer that shares
one with any of them shares one with a neighbour in that order, so two comparisons per item find whether there is an
overlap. After the first overlap the sweep goes on, and may miss further pairs.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import accumulate

from tmmu.errors import PlanUnsound
from tmmu.ir.fault import Fault, faults_field, headline
from tmmu.ir.problem import PackProblem


def require_sound_packing(problem: PackProblem, offset: Sequence[int], *, peak: int, bound: int) -> None:
    """Returns where no byte is shared, offsets are as given or aligned, and the numbers true; ``PlanUnsound`` else.

    Knows nothing of how offsets were found. O(n log n) but for short memory moves.
    """
    faults = tuple(packing_faults(problem, offset, peak=peak, bound=bound))
    if faults:
        raise PlanUnsound(
            headline(faults), fix="this is a fault of tmmu: report it", count=len(faults), faults=faults_field(faults)
        )


def packing_faults(problem: PackProblem, offset: Sequence[int], *, peak: int, bound: int) -> Iterator[Fault]:
    """The faults by the rules ``offsets``, ``overlap``, ``peak`` and ``bound``."""
    if len(offset) != len(problem):
        yield Fault(rule="offsets", what=f"{len(offset)} offsets for {len(problem)} items")
        return
    yield from _offset_faults(problem, offset)
    for older, newer in overlapping_pairs(problem, offset):
        yield Fault(rule="overlap", what=f"items {older} and {newer} share bytes at {problem.birth[newer]}")
    top = max((offset[item] + problem.size[item] for item in nonempty_items(problem)), default=0)
    if peak != top:
        yield Fault(rule="peak", what=f"the peak is {top}, not {peak}")
    live = most_live_bytes(problem)
    if not live <= bound <= peak:
        yield Fault(rule="bound", what=f"{bound} is no bound: {live} live at once, the peak is {peak}")


def _offset_faults(problem: PackProblem, offset: Sequence[int]) -> Iterator[Fault]:
    for item, (actual, step, fixed) in enumerate(zip(offset, problem.alignment, problem.fixed, strict=True)):
        if fixed >= 0:
            if actual != fixed:
                yield Fault(rule="offsets", what=f"item {item} is at {actual}, not at {fixed} as given")
        elif actual < 0 or actual % step:
            yield Fault(rule="offsets", what=f"item {item} is at {actual}, no multiple of {step}")


def nonempty_items(problem: PackProblem) -> list[int]:
    """Items that hold a byte at some moment; the others conflict with nothing."""
    columns = zip(problem.size, problem.birth, problem.death, strict=True)
    return [item for item, (size, birth, death) in enumerate(columns) if size > 0 and birth < death]


def overlapping_pairs(problem: PackProblem, offset: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(older, newer) items that share a byte at some moment: none in a sound packing, one at least in any other."""
    alive: list[tuple[int, int]] = []
    dying: list[tuple[int, int]] = []
    for item in sorted(nonempty_items(problem), key=lambda i: (problem.birth[i], offset[i], i)):
        while dying and dying[0][0] <= problem.birth[item]:
            dead = heappop(dying)[1]
            del alive[bisect_left(alive, (offset[dead], dead))]
        index = bisect_left(alive, (offset[item], item))
        if index and offset[alive[index - 1][1]] + problem.size[alive[index - 1][1]] > offset[item]:
            yield alive[index - 1][1], item
        if index < len(alive) and offset[item] + problem.size[item] > alive[index][0]:
            yield alive[index][1], item
        alive.insert(index, (offset[item], item))
        heappush(dying, (problem.death[item], item))


def most_live_bytes(problem: PackProblem) -> int:
    """The most bytes live at once: no arena that holds the items is smaller."""
    return most_live(zip(problem.birth, problem.death, problem.size, strict=True))


def most_live(spans: Iterable[tuple[int, int, int]]) -> int:
    """The most weight live at once of (birth, death, weight); an empty span weighs nothing."""
    change: Counter[int] = Counter()
    for birth, death, weight in spans:
        if birth < death:
            change[birth] += weight
            change[death] -= weight
    return max(accumulate(change[time] for time in sorted(change)), default=0)
