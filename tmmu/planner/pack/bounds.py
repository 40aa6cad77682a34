"""Lower bounds: what no arena that holds the items can be below."""

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import accumulate

from tmmu.ir.problem import PackProblem

GAP_WORK = 2_000_000
"""Items times given offsets up to which the gaps among given offsets are looked at."""


def live_bound(problem: PackProblem) -> int:
    """The most bytes live at once."""
    return max(accumulate(change for _, change in _load_changes(problem, problem.size)), default=0)


def lower_bound(problem: PackProblem) -> int:
    """The sharpest of: bytes live at once, with what alignment wastes; ends given; gaps that hold nothing."""
    ends = (offset + size for offset, size in zip(problem.fixed, problem.size, strict=True) if offset >= 0)
    return max(live_bound(problem), padded_bound(problem), gap_bound(problem), max(ends, default=0))


def padded_bound(problem: PackProblem) -> int:
    """Live at once, all but the topmost fill multiples of the least alignment; 0 where offsets given defy it."""
    step = min(problem.alignment, default=1)
    padded = tuple(-(-size // step) * step for size in problem.size)
    if padded == problem.size or any(offset > 0 and offset % step for offset in problem.fixed):
        return 0
    most, live = 0, 0
    slack: list[tuple[int, int]] = []
    events = sorted(range(len(problem)), key=lambda i: (problem.birth[i], i))
    dying = sorted(range(len(problem)), key=lambda i: (problem.death[i], i))
    ended = 0
    for item in events:
        while problem.death[dying[ended]] <= problem.birth[item]:
            live -= padded[dying[ended]]
            ended += 1
        live += padded[item]
        heappush(slack, (problem.size[item] - padded[item], problem.death[item]))
        while slack[0][1] <= problem.birth[item]:
            heappop(slack)
        most = max(most, live + slack[0][0])
    return most


def gap_bound(problem: PackProblem) -> int:
    """Among given offsets, a gap below the size of the smallest free item stays empty; 0 where none is given."""
    fixed_items = [item for item, offset in enumerate(problem.fixed) if offset >= 0]
    free = [item for item, offset in enumerate(problem.fixed) if offset < 0]
    if not fixed_items or not free or len(problem) * len(fixed_items) > GAP_WORK or len(problem) * len(free) > GAP_WORK:
        return 0
    return max(_fixed_load(problem, fixed_items, free, time) for time in sorted(set(problem.birth)))


def _fixed_load(problem: PackProblem, fixed_items: list[int], free: list[int], time: int) -> int:
    """Bytes live at ``time`` and gaps below the last of ``given`` that no free item of the moment fits."""
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
    """By time, how much more is live from then on."""
    change: dict[int, int] = {}
    for birth, death, item_bytes in zip(problem.birth, problem.death, size, strict=True):
        change[birth] = change.get(birth, 0) + item_bytes
        change[death] = change.get(death, 0) - item_bytes
    for time in sorted(change):
        yield time, change[time]
