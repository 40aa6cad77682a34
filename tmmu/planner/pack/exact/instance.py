"""Search instances: one per component in time, with items in canonical order, sections for times, and small integers.

Reductions, each of which keeps every peak attainable: items without bytes or span are left out; of all moments only the
maximal sets of items live at once remain (*sections*, the maximal cliques of the interval graph, in time order);
a common unit is divided out.
"""

from bisect import bisect_left
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate, pairwise
from math import gcd

from tmmu.ir.problem import PackProblem

MAX_ITEMS = 5_000
"""The trail for backtracking is quadratic in the items: 300 MB at most."""
MAX_UNITS = 1 << 56
"""Sums of all sizes stay far below the limit of int64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchInstance:
    """Items in canonical order; ``row`` is their index in the problem. Offsets and sizes are multiples of ``unit``.

    ``units`` is the size rounded up to units, ``bytes`` the exact size. Item ``i`` is live in sections
    ``[first_section[i], end_section[i])``; ``span`` is its length of life in positions.
    """

    row: tuple[int, ...]
    bytes: tuple[int, ...]
    units: tuple[int, ...]
    align: tuple[int, ...]
    fixed: tuple[int, ...]
    span: tuple[int, ...]
    first_section: tuple[int, ...]
    end_section: tuple[int, ...]
    sections: int
    unit: int

    def __len__(self) -> int:
        return len(self.row)

    @property
    def is_searchable(self) -> bool:
        """Whether items and numbers are within the limits of the search."""
        return len(self) <= MAX_ITEMS and self.fits_word

    @property
    def fits_word(self) -> bool:
        """Whether no offset of a packing without gaps leaves the integers of compiled code."""
        return max(self.fixed) + sum(self.units) + sum(self.align) < MAX_UNITS

    def clamp_capacity(self, capacity: int) -> int:
        """``capacity``, at most the largest that fits the search's integers."""
        return min(capacity, MAX_UNITS * self.unit)

    @property
    def loads(self) -> list[int]:
        """Units live per section."""
        change = [0] * (self.sections + 1)
        for item, size in enumerate(self.units):
            change[self.first_section[item]] += size
            change[self.end_section[item]] -= size
        return list(accumulate(change))[:-1]

    @property
    def bound(self) -> int:
        """Lower bound in bytes: per section all its units but the unused end of one item; and every fixed end."""
        ends = [fixed * self.unit + size for fixed, size in zip(self.fixed, self.bytes, strict=True) if fixed >= 0]
        spare = self._spare()
        return max([load * self.unit - spare[section] for section, load in enumerate(self.loads)] + ends)

    def _spare(self) -> list[int]:
        """Per section, the most bytes that an item leaves unused in its last unit."""
        pads = [room * self.unit - size for room, size in zip(self.units, self.bytes, strict=True)]
        if not any(pads):
            return [0] * self.sections
        waiting = sorted(range(len(pads)), key=lambda item: (-self.first_section[item], item))
        live: list[tuple[int, int]] = []
        spare = []
        for section in range(self.sections):
            while waiting and self.first_section[waiting[-1]] <= section:
                item = waiting.pop()
                heappush(live, (-pads[item], self.end_section[item]))
            while live[0][1] <= section:
                heappop(live)
            spare.append(-live[0][0])
        return spare


def occupies_bytes(problem: PackProblem, row: int) -> bool:
    """Whether a row has bytes and a span."""
    return problem.size[row] > 0 and problem.birth[row] < problem.death[row]


def prepare_instances(problem: PackProblem) -> tuple[SearchInstance, ...]:
    """One instance per component in time, in time order; independent of the order of rows, except among equal rows."""
    p = problem
    rows = [row for row in range(len(p)) if occupies_bytes(p, row)]
    rows.sort(key=lambda r: (p.birth[r], -p.death[r], -p.size[r], p.alignment[r], p.fixed[r], r))
    parts: list[list[int]] = []
    live_until = 0
    for row in rows:
        if not parts or p.birth[row] >= live_until:
            parts.append([])
            live_until = p.death[row]
        parts[-1].append(row)
        live_until = max(live_until, p.death[row])
    return tuple(instance_of(problem, part) for part in parts)


def instance_of(problem: PackProblem, rows: list[int]) -> SearchInstance:
    """The instance of some rows of ``problem``, in that order."""
    size = [problem.size[row] for row in rows]
    alignment = [problem.alignment[row] for row in rows]
    fixed = [problem.fixed[row] for row in rows]
    # Every offset is a multiple of ``step``, so that rounding sizes up to it changes no packing.
    step = gcd(*alignment, *(offset for offset in fixed if offset > 0))
    padded = [-(-number // step) * step for number in size]
    unit = offset_unit(padded, alignment, fixed)
    birth, death = [problem.birth[row] for row in rows], [problem.death[row] for row in rows]
    first_section, end_section, sections = sections_of(birth, death)
    return SearchInstance(
        row=tuple(rows),
        bytes=tuple(size),
        units=tuple(number // unit for number in padded),
        align=tuple(max(number // unit, 1) for number in alignment),
        fixed=tuple(offset // unit if offset >= 0 else -1 for offset in fixed),
        span=tuple(end - start for start, end in zip(birth, death, strict=True)),
        first_section=first_section,
        end_section=end_section,
        sections=sections,
        unit=unit,
    )


def offset_unit(sizes: list[int], alignments: list[int], fixed: list[int]) -> int:
    """The largest unit of all relevant offsets (sums of sizes rounded up to alignments): a fixed point of gcds."""
    # Each round divides the unit by a proper factor or changes nothing: at most log2(unit) rounds.
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
    """(first section, end section, both per item; number of sections).

    A maximal set of live items is complete where a birth is followed by a death.
    """
    events = sorted([(t, 1) for t in birth] + [(t, 0) for t in death])
    full = [t for (t, kind), (_, after) in pairwise(events) if kind == 1 and after == 0]
    first_section = tuple(bisect_left(full, t) for t in birth)
    end_section = tuple(bisect_left(full, t) for t in death)
    return first_section, end_section, len(full)


def offsets_by_row(
    parts: tuple[SearchInstance, ...], offsets: list[tuple[int, ...]], default: tuple[int, ...]
) -> tuple[int, ...]:
    """Offsets by row of the problem; ``default`` for rows in no part."""
    by_row = list(default)
    for part, offset in zip(parts, offsets, strict=True):
        for row, value in zip(part.row, offset, strict=True):
            by_row[row] = value
    return tuple(by_row)
