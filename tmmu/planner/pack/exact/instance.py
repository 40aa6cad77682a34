"""The problem as the search sees it: items that matter, in an order of their own, in small numbers.

Reductions, all of which keep every peak attainable: items that conflict with nothing by size or span lie at 0 (or
where they were given); moments that no further moment includes are the only ones kept; a common unit is divided out.
"""

from bisect import bisect_left
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate, pairwise
from math import gcd

from tmmu.ir.problem import PackProblem

MAX_ITEMS = 5_000
"""What is kept for going back is quadratic in the items: 300 MB at the worst."""
MAX_UNITS = 1 << 56
"""Sums of all sizes stay far below the limit of a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """Items in canonical order; ``row`` is their index in the problem. Offsets and sizes are multiples of ``unit``.

    ``room`` is the size rounded up to units; ``byte`` what it was. Item ``i`` is live in sections ``[lo, hi)``: sets
    of items live at once, none within another, in the order of time. ``span`` is how long it lives.
    """

    row: tuple[int, ...]
    byte: tuple[int, ...]
    room: tuple[int, ...]
    align: tuple[int, ...]
    fixed: tuple[int, ...]
    span: tuple[int, ...]
    lo: tuple[int, ...]
    hi: tuple[int, ...]
    sections: int
    unit: int

    def __len__(self) -> int:
        return len(self.row)

    @property
    def searchable(self) -> bool:
        """Whether the search can hold it: neither too many items nor too large numbers."""
        most = max(self.fixed) + sum(self.room) + sum(self.align)
        return len(self) <= MAX_ITEMS and most < MAX_UNITS

    def capped(self, capacity: int) -> int:
        """``capacity``, or one that is as good as endless and that the search can hold."""
        return min(capacity, MAX_UNITS * self.unit)

    @property
    def loads(self) -> list[int]:
        """Per section, the units live in it."""
        change = [0] * (self.sections + 1)
        for item, size in enumerate(self.room):
            change[self.lo[item]] += size
            change[self.hi[item]] -= size
        return list(accumulate(change))[:-1]

    @property
    def bound(self) -> int:
        """Bytes that every placement needs: of each section all units but the end of one, and every given end."""
        ends = [fixed * self.unit + size for fixed, size in zip(self.fixed, self.byte, strict=True) if fixed >= 0]
        spare = self._spare()
        return max([load * self.unit - spare[section] for section, load in enumerate(self.loads)] + ends)

    def _spare(self) -> list[int]:
        """Per section, the most bytes of its last unit that an item leaves unused."""
        pads = [room * self.unit - size for room, size in zip(self.room, self.byte, strict=True)]
        if not any(pads):
            return [0] * self.sections
        waiting = sorted(range(len(pads)), key=lambda item: (-self.lo[item], item))
        live: list[tuple[int, int]] = []
        spare = []
        for section in range(self.sections):
            while waiting and self.lo[waiting[-1]] <= section:
                item = waiting.pop()
                heappush(live, (-pads[item], self.hi[item]))
            while live[0][1] <= section:
                heappop(live)
            spare.append(-live[0][0])
        return spare


def matters(problem: PackProblem, row: int) -> bool:
    """Whether a row takes any room."""
    return problem.size[row] > 0 and problem.birth[row] < problem.death[row]


def prepare(problem: PackProblem) -> tuple[Instance, ...]:
    """One instance per part of the timeline that shares no item with the others, in the order of time.

    The same whatever the order of the rows, but for ``row`` among equal rows.
    """
    p = problem
    rows = [row for row in range(len(p)) if matters(p, row)]
    rows.sort(key=lambda r: (p.birth[r], -p.death[r], -p.size[r], p.alignment[r], p.fixed[r], r))
    parts: list[list[int]] = []
    until = 0
    for row in rows:
        if not parts or p.birth[row] >= until:
            parts.append([])
            until = p.death[row]
        parts[-1].append(row)
        until = max(until, p.death[row])
    return tuple(instance_of(problem, part) for part in parts)


def instance_of(problem: PackProblem, rows: list[int]) -> Instance:
    """The instance of some rows of ``problem``, in that order."""
    size = [problem.size[row] for row in rows]
    alignment = [problem.alignment[row] for row in rows]
    fixed = [problem.fixed[row] for row in rows]
    step = gcd(*alignment, *(offset for offset in fixed if offset > 0))
    padded = [-(-one // step) * step for one in size]
    unit = common_unit(padded, alignment, fixed)
    lo, hi, sections = sections_of([problem.birth[row] for row in rows], [problem.death[row] for row in rows])
    return Instance(
        row=tuple(rows),
        byte=tuple(size),
        room=tuple(one // unit for one in padded),
        align=tuple(max(one // unit, 1) for one in alignment),
        fixed=tuple(offset // unit if offset >= 0 else -1 for offset in fixed),
        span=tuple(problem.death[row] - problem.birth[row] for row in rows),
        lo=lo,
        hi=hi,
        sections=sections,
        unit=unit,
    )


def common_unit(sizes: list[int], alignments: list[int], fixed: list[int]) -> int:
    """The largest unit that every offset worth looking at is a multiple of: sums of sizes, rounded up to alignments."""
    unit = gcd(*sizes, *(offset for offset in fixed if offset > 0))
    steady = False
    while not steady:
        before = unit
        for alignment in alignments:
            if unit % alignment:
                unit = gcd(unit, alignment)
        steady = unit == before
    return max(unit, 1)


def sections_of(birth: list[int], death: list[int]) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Per item ``[lo, hi)`` among the largest sets of items live at once: (lo, hi, their number).

    Such a set is complete where, after a birth, the next event is a death.
    """
    events = sorted([(t, 1) for t in birth] + [(t, 0) for t in death])
    full = [t for (t, kind), (_, after) in pairwise(events) if kind == 1 and after == 0]
    lo = tuple(bisect_left(full, t) for t in birth)
    hi = tuple(bisect_left(full, t) for t in death)
    return lo, hi, len(full)


def spread(parts: tuple[Instance, ...], offsets: list[tuple[int, ...]], others: tuple[int, ...]) -> tuple[int, ...]:
    """Offsets by row of the problem: of each part its own, of rows in no part what ``others`` say."""
    by_row = list(others)
    for part, offset in zip(parts, offsets, strict=True):
        for row, value in zip(part.row, offset, strict=True):
            by_row[row] = value
    return tuple(by_row)
