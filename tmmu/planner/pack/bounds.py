"""Lower bounds of the peak, none of which needs a search."""

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import accumulate

from tmmu.ir.problem import PackProblem

GAP_WORK = 2_000_000
"""Limit of items x fixed offsets: ``gap_bound`` looks at all of them at every birth."""


def live_bound(problem: PackProblem) -> int:
    """The most bytes live at once."""
    return max(accumulate(change for _, change in _load_changes(problem, problem.size)), default=0)


def lower_bound(problem: PackProblem) -> int:
    """The highest of: bytes live at once, the same with alignment padding, with unusable gaps, and fixed ends."""
    ends = (offset + size for offset, size in zip(problem.fixed, problem.size, strict=True) if offset >= 0)
    return max(live_bound(problem), padded_bound(problem), gap_bound(problem), max(ends, default=0))


def padded_bound(problem: PackProblem) -> int:
    """Bytes live at once, all items but the topmost padded to the least alignment; 0 if a fixed offset is unaligned.

    Sweep in birth order; ``slack`` is a heap of (size - padded size, death): its least live entry is the padding that
    the topmost item may save. O(n log n).
    """
    step = min(problem.alignment, default=1)
    padded = tuple(-(-size // step) * step for size in problem.size)
    if padded == problem.size or any(offset > 0 and offset % step for offset in problem.fixed):
        return 0
    most, live = 0, 0
    slack: list[tuple[int, int]] = []
    by_birth = sorted(range(len(problem)), key=lambda i: (problem.birth[i], i))
    by_death = sorted(range(len(problem)), key=lambda i: (problem.death[i], i))
    ended = 0
    for item in by_birth:
        while problem.death[by_death[ended]] <= problem.birth[item]:
            live -= padded[by_death[ended]]
            ended += 1
        live += padded[item]
        heappush(slack, (problem.size[item] - padded[item], problem.death[item]))
        # Dead entries are dropped at the top only: one below is never read. The new item keeps the heap from emptying.
        while slack[0][1] <= problem.birth[item]:
            heappop(slack)
        most = max(most, live + slack[0][0])
    return most


def gap_bound(problem: PackProblem) -> int:
    """Bytes live at once plus the gaps between fixed items that hold no free item; 0 without fixed offsets."""
    fixed_items = [item for item, offset in enumerate(problem.fixed) if offset >= 0]
    free = [item for item, offset in enumerate(problem.fixed) if offset < 0]
    if not fixed_items or not free or len(problem) * len(fixed_items) > GAP_WORK or len(problem) * len(free) > GAP_WORK:
        return 0
    return max(_fixed_load(problem, fixed_items, free, time) for time in sorted(set(problem.birth)))


def _fixed_load(problem: PackProblem, fixed_items: list[int], free: list[int], time: int) -> int:
    """Bytes live at ``time``, and the gaps between fixed items that are smaller than the smallest free item."""
    live_fixed = sorted(
        (problem.fixed[i], problem.size[i]) for i in fixed_items if problem.birth[i] <= time < problem.death[i]
    )
    sizes = [problem.size[i] for i in free if problem.birth[i] <= time < problem.death[i]]
    if not live_fixed or not sizes:
        return 0
    least, top, wasted = min(sizes), 0, 0
    for offset, size in live_fixed:
        wasted += offset - top if 0 < offset - top < least else 0
        top = max(top, offset + size)
    return sum(sizes) + sum(size for _, size in live_fixed) + wasted


def _load_changes(problem: PackProblem, size: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """(time, change of the live bytes), by time."""
    change: dict[int, int] = {}
    for birth, death, item_bytes in zip(problem.birth, problem.death, size, strict=True):
        change[birth] = change.get(birth, 0) + item_bytes
        change[death] = change.get(death, 0) - item_bytes
    for time in sorted(change):
        yield time, change[time]
