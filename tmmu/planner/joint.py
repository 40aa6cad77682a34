"""Joint placement: several arenas packed into one range of bytes (a slab), each with its own peak and bound.

The items of all arenas form one packing problem, concatenated arena by arena, so that item ``i`` of the union is
found again by its position. Invariant: the slab never ends higher than the arenas packed separately and stacked, the
fallback when a heuristic does worse on the union. One packing of the union and at most one per arena, no iteration.
See docs/spec/packing.md.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise

from tmmu.ir.problem import Placement, Problem
from tmmu.planner.layout import place_packed
from tmmu.planner.slots import max_live_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedSlab:
    """Arenas (indices) with a placement each; ``bound``: bytes that any layout of all of them needs."""

    arenas: tuple[int, ...]
    placements: tuple[Placement, ...]
    bound: int


def slab_of_one(arena: int, placement: Placement) -> PlacedSlab:
    """The slab of an arena that is laid out alone."""
    return PlacedSlab(arenas=(arena,), placements=(placement,), bound=placement.bound)


def arena_placements(slabs: Sequence[PlacedSlab]) -> tuple[Placement, ...]:
    """Placement per arena, in arena order."""
    by_arena = {arena: part for slab in slabs for arena, part in zip(slab.arenas, slab.placements, strict=True)}
    return tuple(by_arena[arena] for arena in sorted(by_arena))


def place_joint(arenas: tuple[int, ...], problems: Sequence[Problem], *, search_nodes: int = 0) -> PlacedSlab:
    """Arenas packed as one problem, never above the arenas stacked; an arena without items moves no other's.

    Per arena, the peak is the highest end of its own items and the bound its own most live bytes; all are proven where
    the union is. The problems have one alignment. ``search_nodes``: node budget of the exact search.
    """
    whole = _no_worse_than_stacked(problems, place_packed(_merge_problems(problems), search_nodes=search_nodes))
    ends = accumulate((len(problem) for problem in problems), initial=0)
    offsets = (whole.offset[low:high] for low, high in pairwise(ends))
    parts = tuple(_arena_placement(problem, offset, whole) for problem, offset in zip(problems, offsets, strict=True))
    return PlacedSlab(arenas=arenas, placements=parts, bound=whole.bound)


def _merge_problems(problems: Sequence[Problem]) -> Problem:
    return Problem(
        size=tuple(chain.from_iterable(problem.size for problem in problems)),
        birth=tuple(chain.from_iterable(problem.birth for problem in problems)),
        death=tuple(chain.from_iterable(problem.death for problem in problems)),
        alignment=problems[0].alignment,
    )


def _no_worse_than_stacked(problems: Sequence[Problem], whole: Placement) -> Placement:
    """``whole``, or the arenas stacked where that is lower: only tried if their bounds sum to less than ``whole``."""
    if sum(map(bool, map(len, problems))) < 2 or sum(map(max_live_bytes, problems)) >= whole.peak:
        return whole
    parts = tuple(map(place_packed, problems))
    bases = tuple(accumulate((part.peak for part in parts), initial=0))
    if bases[-1] >= whole.peak:
        return whole
    return Placement(
        offset=tuple(chain.from_iterable(map(_shift_offsets, problems, parts, bases))),
        peak=bases[-1],
        bound=whole.bound,
        proven=bases[-1] == whole.bound,
        method="apart",
    )


def _shift_offsets(problem: Problem, part: Placement, base: int) -> Iterator[int]:
    """Offsets raised by ``base``; items of 0 bytes stay at 0, as in every placement."""
    return (base + low if size else 0 for low, size in zip(part.offset, problem.size, strict=True))


def _arena_placement(problem: Problem, offset: tuple[int, ...], whole: Placement) -> Placement:
    ends = (low + size for low, size in zip(offset, problem.size, strict=True))
    return Placement(
        offset=offset,
        peak=max(ends, default=0),
        bound=max_live_bytes(problem),
        proven=whole.proven,
        method=whole.method,
    )
