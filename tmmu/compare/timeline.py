"""What a plan holds at each moment: places, who holds them, and when most of them is held."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from tmmu.ir.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Rows of the plan that hold one place in turn, oldest first; one row unless ``takes_over`` joined more."""

    rows: tuple[int, ...]
    birth: int
    death: int
    bytes: int


def places(plan: Plan, arenas: Collection[int]) -> Iterator[Place]:
    """The places of these arenas, by the first birth. What takes over a place counts once."""
    placed = plan.buffers
    root: dict[int, int] = {}
    members: dict[int, list[int]] = {}
    rows = (row for row in range(len(placed)) if placed.arena[row] in arenas)
    for row in sorted(rows, key=lambda row: (placed.birth[row], placed.id[row])):
        buffer, before = placed.id[row], placed.takes_over[row]
        root[buffer] = buffer if before == buffer else root.get(before, before)
        members.setdefault(root[buffer], []).append(row)
    for chain in members.values():
        yield Place(
            rows=tuple(chain),
            birth=placed.birth[chain[0]],
            death=max(placed.death[row] for row in chain),
            bytes=max(placed.bytes[row] for row in chain),
        )


def levels(held: Sequence[Place]) -> tuple[tuple[int, int], ...]:
    """Each position at which the bytes held change, and what they are from there on."""
    change: Counter[int] = Counter()
    for place in held:
        change[place.birth] += place.bytes
        change[place.death] -= place.bytes
    positions = sorted(change)
    return tuple(zip(positions, accumulate(change[position] for position in positions), strict=True))


def fullest(held: Sequence[Place]) -> tuple[int, int]:
    """The first position with most bytes held, and those bytes; (0, 0) of nothing."""
    return max(levels(held), key=lambda level: (level[1], -level[0]), default=(0, 0))


def holders(plan: Plan, held: Sequence[Place], position: int) -> Mapping[int, int]:
    """Who holds a place at ``position``: the buffer that took it last by then, with the place's bytes."""
    born, ids = plan.buffers.birth, plan.buffers.id
    return {
        ids[next(row for row in reversed(place.rows) if born[row] <= position)]: place.bytes
        for place in held
        if place.birth <= position < place.death
    }
