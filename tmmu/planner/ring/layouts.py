"""Fixed addresses for the blocks of a stream: candidates that depend on the stream alone, never on a budget.

That the list does not depend on the budget is what makes a larger budget never worse: it only adds candidates.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from tmmu.planner.ring.arcs import Arcs, arcs_ahead, arcs_filling, arcs_paced, first_fit, holds, most_held, orders
from tmmu.planner.ring.problem import Stream
from tmmu.planner.ring.timing import pace_of

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


def layouts(stream: Stream, room: int, *, bare: bool) -> Iterator[tuple[int, ...]]:
    """Addresses, one per block of ``stream``, each layout once, of those that end within ``room``.

    ``bare``: nothing stays that may stream, so ``skip_end`` with any ring up to ``room`` is among them.
    """
    sizes = [stream.problem.bytes[block] for block in stream.blocks]
    seen: set[tuple[int, ...]] = set()
    for address in _all(stream, sizes, room, bare=bare):
        if address not in seen and extent(sizes, address) <= room:
            seen.add(address)
            yield address


def _all(stream: Stream, sizes: Sequence[int], room: int, *, bare: bool) -> Iterator[tuple[int, ...]]:
    count = len(stream.visits)
    depths = sorted({min(depth, count - 1) for depth in DEPTHS} - {0}, reverse=True)
    for depth in depths:
        yield from _packed(stream, arcs_ahead(stream, depth), depth, room)
    paces = [pace_of(stream, [_ahead(i, depth, count) for i in range(count)]) for depth in depths]
    for time in sorted({stream.floor_ns, *(pace.time for pace in paces if pace)}):
        if time:
            yield from _packed(stream, arcs_paced(stream, time), 1, room)
    for depth in depths:
        for cut in range(0, count, -(-count // CUTS)):
            yield from _packed(stream, arcs_ahead(stream, depth, cut=cut), depth, room)
    windows = _windows(sizes)
    for ring in windows[:: -(-len(windows) // RINGS)]:
        yield from _packed(stream, arcs_filling(stream, ring), 1, room)
    for slots in range(min(len(sizes), room // max(sizes)), 0, -1):
        yield in_slots(sizes, slots)
    for ring in windows if bare else ():
        if ring <= room:
            yield skip_end(sizes, ring)


def _ahead(i: int, depth: int, count: int) -> tuple[int, int]:
    """The visit before the ``depth`` ones ahead of visit ``i``."""
    other = i - depth - 1
    return other % count, -(other // count)


def _packed(stream: Stream, arcs: Arcs, depth: int, room: int) -> Iterator[tuple[int, ...]]:
    held = holds(stream, arcs)
    if most_held(stream, held) <= room:
        for order in orders(stream, depth):
            yield first_fit(stream, held, order)


def _windows(sizes: Sequence[int]) -> list[int]:
    """The rings that ``skip_end`` tells apart, largest first: those whose end some run of blocks meets."""
    ends = list(accumulate(sizes, initial=0))
    sums = {high - low for i, low in enumerate(ends) for high in ends[i + 1 :]}
    return sorted((ring for ring in sums if ring >= max(sizes)), reverse=True)
