"""Slabs: arenas that lie in one range of bytes, each with its own offsets, peak and bound."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise

from tmmu.ir.problem import Placement, Problem
from tmmu.planner.layout import place_packed
from tmmu.planner.slots import max_live_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Slab:
    """``arenas``, by index, and their placements; ``bound`` is the least that holds all of them."""

    arenas: tuple[int, ...]
    parts: tuple[Placement, ...]
    bound: int


def slab_of_one(arena: int, placement: Placement) -> Slab:
    """An arena that shares its bytes with no other."""
    return Slab(arenas=(arena,), parts=(placement,), bound=placement.bound)


def arena_placements(slabs: Sequence[Slab]) -> tuple[Placement, ...]:
    """Every arena's placement, in the order of the arenas."""
    found = {arena: part for slab in slabs for arena, part in zip(slab.arenas, slab.parts, strict=True)}
    return tuple(found[arena] for arena in sorted(found))


def place_joint(arenas: tuple[int, ...], problems: Sequence[Problem], *, nodes: int = 0) -> Slab:
    """Arenas packed as one problem, never worse than one after another; an empty one moves nothing in the others.

    Each part has its own highest end as peak, and as bound what it alone has live at once. All of them are proven
    where the whole is. The problems have one alignment.
    """
    whole = _no_worse_than_apart(problems, place_packed(_union(problems), nodes=nodes))
    ends = accumulate((len(problem) for problem in problems), initial=0)
    offsets = (whole.offset[low:high] for low, high in pairwise(ends))
    parts = tuple(_part(problem, offset, whole) for problem, offset in zip(problems, offsets, strict=True))
    return Slab(arenas=arenas, parts=parts, bound=whole.bound)


def _union(problems: Sequence[Problem]) -> Problem:
    return Problem(
        size=tuple(chain.from_iterable(problem.size for problem in problems)),
        birth=tuple(chain.from_iterable(problem.birth for problem in problems)),
        death=tuple(chain.from_iterable(problem.death for problem in problems)),
        alignment=problems[0].alignment,
    )


def _no_worse_than_apart(problems: Sequence[Problem], whole: Placement) -> Placement:
    """A search may miss on the union what it finds on the parts; only where their bounds leave room for that."""
    if sum(map(bool, map(len, problems))) < 2 or sum(map(max_live_bytes, problems)) >= whole.peak:
        return whole
    parts = tuple(map(place_packed, problems))
    bases = tuple(accumulate((part.peak for part in parts), initial=0))
    if bases[-1] >= whole.peak:
        return whole
    return Placement(
        offset=tuple(chain.from_iterable(map(_raised, problems, parts, bases))),
        peak=bases[-1],
        bound=whole.bound,
        proven=bases[-1] == whole.bound,
        method="apart",
    )


def _raised(problem: Problem, part: Placement, base: int) -> Iterator[int]:
    """Items of no bytes stay at 0."""
    return (base + low if size else 0 for low, size in zip(part.offset, problem.size, strict=True))


def _part(problem: Problem, offset: tuple[int, ...], whole: Placement) -> Placement:
    ends = (low + size for low, size in zip(offset, problem.size, strict=True))
    return Placement(
        offset=offset,
        peak=max(ends, default=0),
        bound=max_live_bytes(problem),
        proven=whole.proven,
        method=whole.method,
    )
