"""Reductions that keep the minimum peak: canonical form, components in time, and items that fit wherever others lie.

Each reduction has an inverse: ``CanonicalProblem.item`` and ``unit`` for order and scale, ranges for components, rounds
of dropped items for ``obstacles.fit_rounds``. Invariant: from a packing of the reduced problem with peak p, the
inverse makes one of the original with peak p (in units), or below the target for dropped items. All are O(n log n).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import gcd

import numpy as np

from tmmu.ir.problem import PackProblem

TIME_LIMIT = 2**62
MAX_DROP_ROUNDS = 4
"""Dropping items makes others droppable; after four rounds next to none are found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CanonicalProblem:
    """The items with bytes and a span, sorted, in units of ``unit`` bytes; ``item``: their original indices."""

    problem: PackProblem
    item: tuple[int, ...]
    unit: int


def select_items(problem: PackProblem, items: Sequence[int]) -> PackProblem:
    """The problem of these items, in this order."""
    return PackProblem(
        size=tuple(problem.size[i] for i in items),
        birth=tuple(problem.birth[i] for i in items),
        death=tuple(problem.death[i] for i in items),
        alignment=tuple(problem.alignment[i] for i in items),
        fixed=tuple(problem.fixed[i] for i in items),
    )


def canonicalize(problem: PackProblem) -> CanonicalProblem:
    """Items sorted by (birth, death, size, alignment, fixed offset, index); times above 62 bits become ranks."""
    columns = (problem.birth, problem.death, problem.size, problem.alignment, problem.fixed)
    keep = [i for i, (b, d, s) in enumerate(zip(*columns[:3], strict=True)) if s > 0 and b < d]
    items = sorted(keep, key=lambda i: tuple(column[i] for column in columns))
    nonempty = select_items(problem, items)
    unit = common_unit(nonempty)
    birth, death = _times_or_ranks(nonempty)
    small = PackProblem(
        size=tuple(size // unit for size in nonempty.size),
        birth=birth,
        death=death,
        alignment=tuple(max(1, step // unit) for step in nonempty.alignment),
        fixed=tuple(offset // unit if offset > 0 else offset for offset in nonempty.fixed),
    )
    return CanonicalProblem(problem=small, item=tuple(items), unit=unit)


def common_unit(problem: PackProblem) -> int:
    """The largest unit of which all offsets of some minimal packing are multiples.

    It divides all sizes and fixed offsets, hence all ends in a packing in which no item can move down. Alignments
    that divide it, or that it divides, keep that true; otherwise only its power of two remains.
    """
    unit = gcd(*problem.size, *(offset for offset in problem.fixed if offset > 0))
    if all(step % unit == 0 or unit % step == 0 for step in set(problem.alignment) if unit):
        return max(1, unit)
    return unit & -unit


def _times_or_ranks(problem: PackProblem) -> tuple[tuple[int, ...], tuple[int, ...]]:
    times = (problem.birth, problem.death)
    if all(-TIME_LIMIT < time < TIME_LIMIT for column in times for time in column):
        return times
    rank = {time: position for position, time in enumerate(sorted({*problem.birth, *problem.death}))}
    return tuple(rank[t] for t in problem.birth), tuple(rank[t] for t in problem.death)


def components(problem: PackProblem) -> tuple[range, ...]:
    """Ranges of items (sorted by birth), cut where nothing is live: items of different ranges never overlap in time."""
    cuts, reach = [0], None
    for item, (birth, death) in enumerate(zip(problem.birth, problem.death, strict=True)):
        if reach is not None and birth >= reach:
            cuts.append(item)
        reach = death if reach is None else max(reach, death)
    ends = [*cuts[1:], len(problem)]
    return tuple(range(low, high) for low, high in zip(cuts, ends, strict=True) if low < high)


def droppable_rounds(problem: PackProblem, target: int) -> tuple[list[int], list[list[int]]]:
    """(core, rounds): an item of a round fits below ``target`` wherever the core, its own and later rounds lie.

    k neighbours of s bytes in all leave at most k + 1 gaps below ``target``. If none held an item of n bytes and
    alignment a, then s + (k + 1)(n + a - 2) >= target. Placed last round first, each in its lowest gap, all stay below.
    """
    remaining = list(range(len(problem)))
    rounds: list[list[int]] = []
    for _ in range(MAX_DROP_ROUNDS):
        needed = _may_not_fit(select_items(problem, remaining), target)
        dropped = [item for item, need in zip(remaining, needed, strict=True) if not need]
        if not dropped:
            break
        rounds.append(dropped)
        remaining = [item for item, need in zip(remaining, needed, strict=True) if need]
    return remaining, rounds


def _may_not_fit(problem: PackProblem, target: int) -> list[bool]:
    """Per item, whether it may not fit below ``target`` once all others are placed."""
    by_birth = np.argsort(np.array(problem.birth, dtype=np.int64), kind="stable")
    by_death = np.argsort(np.array(problem.death, dtype=np.int64), kind="stable")
    birth = np.array(problem.birth, dtype=np.int64)
    death = np.array(problem.death, dtype=np.int64)
    born = np.searchsorted(birth[by_birth], death, side="left").tolist()
    died = np.searchsorted(death[by_death], birth, side="right").tolist()
    born_bytes = list(accumulate((problem.size[i] for i in by_birth.tolist()), initial=0))
    died_bytes = list(accumulate((problem.size[i] for i in by_death.tolist()), initial=0))
    is_needed = []
    for item, (size, step, offset) in enumerate(zip(problem.size, problem.alignment, problem.fixed, strict=True)):
        neighbor_count = born[item] - died[item] - 1
        neighbor_bytes = born_bytes[born[item]] - died_bytes[died[item]] - size
        is_needed.append(offset >= 0 or neighbor_bytes + (neighbor_count + 1) * (size + step - 2) >= target)
    return is_needed
