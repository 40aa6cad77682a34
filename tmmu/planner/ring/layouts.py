"""Candidate addresses for streamed blocks: lists that depend on the blocks alone, filtered by the room.

A larger room only removes fewer candidates. That is why a larger budget is never worse (``cyclic.py``).

Candidates, in order: first fit for several kinds of arcs, each in several orders of blocks; equal slots in turn;
``skip_end`` for every size of ring. Each layout is yielded once.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from typing import Final

from tmmu.planner.ring.arcs import Arcs, alap_arcs, capacity_arcs, lookahead_arcs, packings
from tmmu.planner.ring.problem import StreamedBlocks
from tmmu.planner.ring.timing import steady_pass_time

DEPTHS: Final = (8, 6, 4, 3, 2, 1)
"""Prefetch distances to try, in visits: beyond four nothing was gained on any model of the corpus."""
MAX_CUTS: Final = 8
MAX_WINDOWS: Final = 48


def skip_end(sizes: Sequence[int], ring: int) -> tuple[int, ...]:
    """One block after another; a block that would cross the end of the ring starts at 0."""
    addresses, top = [], 0
    for size in sizes:
        top = 0 if top + size > ring else top
        addresses.append(top)
        top += size
    return tuple(addresses)


def in_slots(sizes: Sequence[int], slots: int) -> tuple[int, ...]:
    """Equal slots of the largest block, round robin."""
    return tuple(i % slots * max(sizes) for i in range(len(sizes)))


def extent(sizes: Sequence[int], addresses: Sequence[int]) -> int:
    """The end of the highest block, in bytes."""
    return max((address + size for address, size in zip(addresses, sizes, strict=True)), default=0)


def candidate_layouts(streamed: StreamedBlocks, room: int, *, all_stream: bool) -> Iterator[tuple[int, ...]]:
    """Addresses, one per streamed block, of every candidate that ends within ``room`` bytes; each layout once.

    ``all_stream``: no block is resident that may stream, so the layouts of the policy ``skip_end`` belong here too.
    """
    sizes = [streamed.problem.bytes[block] for block in streamed.blocks]
    yielded: set[tuple[int, ...]] = set()
    sequential = _sequential_layouts(sizes, room, all_stream=all_stream)
    for addresses in chain(_packed_layouts(streamed, sizes, room), sequential):
        if addresses not in yielded and extent(sizes, addresses) <= room:
            yielded.add(addresses)
            yield addresses


def _packed_layouts(streamed: StreamedBlocks, sizes: Sequence[int], room: int) -> Iterator[tuple[int, ...]]:
    """First fit for each kind of arcs, in several orders."""
    packed: set[tuple[Arcs, int]] = set()
    for arcs, depth in _candidate_arcs(streamed, sizes):
        if (arcs, depth) not in packed:
            packed.add((arcs, depth))
            yield from packings(streamed, arcs, depth, room)


def _candidate_arcs(streamed: StreamedBlocks, sizes: Sequence[int]) -> Iterator[tuple[Arcs, int]]:
    """(arcs, depth): of every depth, as late as a pass time allows, cut open at a visit, and by what fits a ring."""
    count = len(streamed.visits)
    depths = sorted({min(depth, count - 1) for depth in DEPTHS} - {0}, reverse=True)
    yield from ((lookahead_arcs(streamed, depth), depth) for depth in depths)
    times = [steady_pass_time(streamed, [_wait_at_depth(i, depth, count) for i in range(count)]) for depth in depths]
    pass_ns = {streamed.floor_ns, *(time.ns for time in times if time)} - {0}
    yield from ((alap_arcs(streamed, ns), 1) for ns in sorted(pass_ns))
    for depth in depths:
        for cut in range(0, count, -(-count // MAX_CUTS)):
            yield lookahead_arcs(streamed, depth, cut=cut), depth
    windows = _window_sizes(sizes)
    yield from ((capacity_arcs(streamed, ring), 1) for ring in windows[:: -(-len(windows) // MAX_WINDOWS)])


def _sequential_layouts(sizes: Sequence[int], room: int, *, all_stream: bool) -> Iterator[tuple[int, ...]]:
    """The layouts of the policies ``slots``, ``double`` and ``skip_end``."""
    for slots in range(min(len(sizes), room // max(sizes)), 0, -1):
        yield in_slots(sizes, slots)
    if all_stream:
        yield from (skip_end(sizes, ring) for ring in _window_sizes(sizes) if ring <= room)


def _wait_at_depth(i: int, depth: int, count: int) -> tuple[int, int]:
    """The wait of the copy of visit ``i`` if it is issued ``depth`` visits ahead: for the visit just before those."""
    reader = i - depth - 1
    return reader % count, -(reader // count)


def _window_sizes(sizes: Sequence[int]) -> list[int]:
    """The ring sizes that ``skip_end`` distinguishes, largest first: sums of consecutive blocks."""
    ends = list(accumulate(sizes, initial=0))
    sums = {high - low for i, low in enumerate(ends) for high in ends[i + 1 :]}
    return sorted((ring for ring in sums if ring >= max(sizes)), reverse=True)
