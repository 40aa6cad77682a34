"""The slabs of a plan over time: live bytes at each position, bound, capacities, and what is live at the peak."""

from dataclasses import dataclass

from tmmu.compare.timeline import levels, live_buffers, peak_level, placed_items
from tmmu.ir.plan import JOINT, Plan, slabs_of

SEGMENT_ORDER = ("stack", "data", "text")
"""What is planned over time first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapSlab:
    """A range of bytes of its own, ``bytes`` long, which holds these ``arenas``.

    ``levels``: (position, live bytes) where the live bytes change. ``bound``: no layout needs less. ``capacities``:
    (arena, bytes) of those that have one. ``live``: rows of the buffers that are live at ``peak_position``, the first
    with most live bytes, ``peak_bytes``; largest first.
    """

    name: str
    segment: str
    arenas: tuple[int, ...]
    bytes: int
    bound: int
    proven: bool
    capacities: tuple[tuple[str, int], ...]
    levels: tuple[tuple[int, int], ...]
    peak_position: int
    peak_bytes: int
    live: tuple[int, ...]


def map_slabs(plan: Plan) -> tuple[MapSlab, ...]:
    """The slabs that hold a buffer, stack before data before text; in the plan's order within a segment."""
    used = frozenset(plan.buffers.arena)
    slabs = (slab for slab in slabs_of(plan.arenas.segment, plan.arenas.layout) if used.intersection(slab))
    ordered = sorted(slabs, key=lambda slab: (SEGMENT_ORDER.index(plan.arenas.segment[slab[0]]), slab))
    return tuple(_slab(plan, slab) for slab in ordered)


def _slab(plan: Plan, slab: tuple[int, ...]) -> MapSlab:
    arenas, placed = plan.arenas, plan.buffers
    items = tuple(placed_items(plan, slab))
    position, peak = peak_level(items)
    live = frozenset(live_buffers(plan, items, position))
    rows = [row for row, buffer in enumerate(placed.id) if buffer in live]
    used = [arena for arena in slab if arena in frozenset(placed.arena)]
    return MapSlab(
        name=" and ".join(arenas.name[arena] for arena in used),
        segment=arenas.segment[slab[0]],
        arenas=slab,
        bytes=max(arenas.peak[arena] for arena in slab),
        bound=peak if arenas.layout[slab[0]] == JOINT else arenas.bound[slab[0]],
        proven=all(arenas.proven[arena] for arena in slab),
        capacities=tuple((arenas.name[arena], arenas.capacity[arena]) for arena in slab if arenas.capacity[arena]),
        levels=levels(items),
        peak_position=position,
        peak_bytes=peak,
        live=tuple(sorted(rows, key=lambda row: (-placed.bytes[row], placed.id[row]))),
    )
