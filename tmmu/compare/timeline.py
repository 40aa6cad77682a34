"""Memory over time: what a plan holds at each position, which buffers hold it, and where it peaks."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from tmmu.ir.ids import BufferId
from tmmu.ir.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedItem:
    """An item of the plan: rows that have one place in turn, oldest first; one row unless ``takes_over`` joined more.

    ``[birth, death)`` in positions, ``bytes`` padded.
    """

    rows: tuple[int, ...]
    birth: int
    death: int
    bytes: int


def placed_items(plan: Plan, arenas: Collection[int]) -> Iterator[PlacedItem]:
    """The items of these arenas, by birth. Buffers that take over one another count once."""
    placed = plan.buffers
    root: dict[BufferId, BufferId] = {}
    members: dict[BufferId, list[int]] = {}
    rows = (row for row in range(len(placed)) if placed.arena[row] in arenas)
    # A buffer is born no earlier than the one that it takes over, so that one's root is known.
    for row in sorted(rows, key=lambda row: (placed.birth[row], placed.id[row])):
        buffer, taken_over = placed.id[row], placed.takes_over[row]
        root[buffer] = root.get(taken_over, taken_over)
        members.setdefault(root[buffer], []).append(row)
    for chain in members.values():
        yield PlacedItem(
            rows=tuple(chain),
            birth=placed.birth[chain[0]],
            death=max(placed.death[row] for row in chain),
            bytes=max(placed.bytes[row] for row in chain),
        )


def levels(items: Sequence[PlacedItem]) -> tuple[tuple[int, int], ...]:
    """(position, bytes): each position at which the live bytes change, and what they are from there on."""
    change: Counter[int] = Counter()
    for item in items:
        change[item.birth] += item.bytes
        change[item.death] -= item.bytes
    positions = sorted(change)
    return tuple(zip(positions, accumulate(change[position] for position in positions), strict=True))


def peak_level(items: Sequence[PlacedItem]) -> tuple[int, int]:
    """The first position with the most live bytes, and those bytes; (0, 0) without items."""
    return max(levels(items), key=lambda level: (level[1], -level[0]), default=(0, 0))


def live_buffers(plan: Plan, items: Sequence[PlacedItem], position: int) -> Mapping[BufferId, int]:
    """The bytes of each item that is live at ``position``, by the buffer that took it over last by then."""
    births, ids = plan.buffers.birth, plan.buffers.id
    return {
        ids[next(row for row in reversed(item.rows) if births[row] <= position)]: item.bytes
        for item in items
        if item.birth <= position < item.death
    }
