"""Fixed addresses for the blocks of a stream: candidates that depend on the stream alone, never on a budget.

That the list does not depend on the budget is what makes a larger budget never worse: it only adds candidates.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from typing import Final

from tmmu.planner.ring.arcs import (
    Arcs,
    alap_arcs,
    capacity_arcs,
    first_fit,
    lookahead_arcs,
    occupancy_masks,
    peak_occupancy,
    placement_orders,
)
from tmmu.planner.ring.problem import StreamedBlocks
from tmmu.planner.ring.timing import steady_pass_time

DEPTHS: Final = (8, 6, 4, 3, 2, 1)
"""How far ahead copies are tried to start, in visits: past four nothing was gained on any model of the corpus."""
CUTS: Final = 8
RINGS: Final = 48


def skip_end(sizes: Sequence[int], ring: int) -> tuple[int, ...]:
    """One block after another; one that would cross the end of the ring starts at 0."""
    address, at = [], 0
    for size in sizes:
        at = 0 if at + size > ring else at
        address.append(at)
        at += size
    return tuple(address)


def in_slots(sizes: Sequence[int], slots: int) -> tuple[int, ...]:
    """Equal slots of the largest block, in turn."""
    return tuple(i % slots * max(sizes) for i in range(len(sizes)))


def extent(sizes: Sequence[int], address: Sequence[int]) -> int:
    """The end of the highest block."""
    return max((at + size for at, size in zip(address, sizes, strict=True)), default=0)


def candidate_layouts(stream: StreamedBlocks, room: int, *, bare: bool) -> Iterator[tuple[int, ...]]:
    """Addresses, one per block of ``stream``, each layout once, of those that end within ``room``.

    ``bare``: nothing stays that may stream, so ``skip_end`` with any ring up to ``room`` is among them.
    """
    sizes = [stream.problem.bytes[block] for block in stream.blocks]
    seen: set[tuple[int, ...]] = set()
    for address in chain(_packed(stream, sizes, room), _in_turn(sizes, room, bare=bare)):
        if address not in seen and extent(sizes, address) <= room:
            seen.add(address)
            yield address


def _packed(stream: StreamedBlocks, sizes: Sequence[int], room: int) -> Iterator[tuple[int, ...]]:
    """First fit of each kind of arcs, in several orders."""
    seen: set[tuple[Arcs, int]] = set()
    for kind in _arcs(stream, sizes):
        if kind not in seen:
            seen.add(kind)
            arcs, depth = kind
            held = occupancy_masks(stream, arcs)
            if peak_occupancy(stream, held) <= room:
                yield from (first_fit(stream, held, order) for order in placement_orders(stream, depth))


def _arcs(stream: StreamedBlocks, sizes: Sequence[int]) -> Iterator[tuple[Arcs, int]]:
    """Arcs to pack, and how many of them are held at once: all ahead, of a pace, cut open somewhere, filling a ring."""
    count = len(stream.visits)
    depths = sorted({min(depth, count - 1) for depth in DEPTHS} - {0}, reverse=True)
    yield from ((lookahead_arcs(stream, depth), depth) for depth in depths)
    paces = [steady_pass_time(stream, [_ahead(i, depth, count) for i in range(count)]) for depth in depths]
    times = {stream.floor_ns, *(pace.ns for pace in paces if pace)} - {0}
    yield from ((alap_arcs(stream, time), 1) for time in sorted(times))
    for depth in depths:
        for cut in range(0, count, -(-count // CUTS)):
            yield lookahead_arcs(stream, depth, cut=cut), depth
    windows = _windows(sizes)
    yield from ((capacity_arcs(stream, ring), 1) for ring in windows[:: -(-len(windows) // RINGS)])


def _in_turn(sizes: Sequence[int], room: int, *, bare: bool) -> Iterator[tuple[int, ...]]:
    """What the other policies do."""
    for slots in range(min(len(sizes), room // max(sizes)), 0, -1):
        yield in_slots(sizes, slots)
    if bare:
        yield from (skip_end(sizes, ring) for ring in _windows(sizes) if ring <= room)


def _ahead(i: int, depth: int, count: int) -> tuple[int, int]:
    """The visit before the ``depth`` ones ahead of visit ``i``."""
    other = i - depth - 1
    return other % count, -(other // count)


def _windows(sizes: Sequence[int]) -> list[int]:
    """The rings that ``skip_end`` tells apart, largest first: those whose end some run of blocks meets."""
    ends = list(accumulate(sizes, initial=0))
    sums = {high - low for i, low in enumerate(ends) for high in ends[i + 1 :]}
    return sorted((ring for ring in sums if ring >= max(sizes)), reverse=True)
