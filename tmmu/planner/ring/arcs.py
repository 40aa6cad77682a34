"""Occupancy of a cyclic schedule: each visit's bytes as an arc of a circle, and first fit over those arcs.

State: a circle whose length is one pass, in visits or in nanoseconds, and per visit an arc ``[start, end)`` from the
issue of its copy to the end of its last op. An arc may begin in the pass before (a negative start). A block occupies
the union of the arcs of its visits.

Invariant: two blocks whose arcs meet must have disjoint byte ranges; all others may share an address. This is coloring
of a cyclic interval graph, as in register allocation for software pipelines (Hendren et al. 1992), with byte ranges in
place of registers. It is NP-hard even for equal sizes, so candidates come from first fit in several orders.

The arcs are guesses of how early copies should be issued. A layout found for them is right in any case: which visits
a copy overwrites is derived from the addresses alone (``copies.py``). Arcs only decide how good it is.

Cost: O(n) arcs; O(n^2) bit operations on masks of at most 2n bits; first fit O(n^2 log n) for n streamed blocks.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from tmmu.planner.ring.problem import StreamedBlocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Arcs:
    """Per streamed visit ``[start, end)`` on a circle of this ``length``; a start may be negative."""

    length: int
    spans: tuple[tuple[int, int], ...]


def lookahead_arcs(streamed: StreamedBlocks, depth: int, *, cut: int | None = None) -> Arcs:
    """Each copy is issued ``depth`` visits ahead of its own; with ``cut`` none is issued before that visit's start.

    Unit: visits. A cut turns the circle into a line: an odd circle of equal layers needs three slots, a line two.
    """
    count = len(streamed.visits)
    spans = []
    for i in range(count):
        distance = depth if cut is None else min(depth, (i - cut) % count)
        spans.append((i - distance, streamed.visit_ends[i][0] + 1))
    return Arcs(length=count, spans=tuple(spans))


def capacity_arcs(streamed: StreamedBlocks, room: int) -> Arcs:
    """Each copy is issued as many visits ahead as the blocks from there to its own fit in ``room`` bytes together."""
    conflicts = nearest_conflicts(streamed, room)
    spans = [(conflict + 1, end + 1) for conflict, (end, _) in zip(conflicts, streamed.visit_ends, strict=True)]
    return Arcs(length=len(streamed.visits), spans=tuple(spans))


def nearest_conflicts(streamed: StreamedBlocks, room: int) -> list[int]:
    """Per visit, the nearest earlier one from which on a block repeats or the blocks do not fit in ``room`` bytes.

    Visits are numbered on from pass to pass, so those of the pass before are negative. A sliding window over two
    passes, O(n). It holds the visits after ``conflict`` up to ``i``: of different blocks, and together at most ``room``
    bytes or one visit alone.
    """
    blocks = [streamed.problem.visits[visit].block for visit in streamed.visits]
    size, count = streamed.problem.bytes, len(blocks)
    in_window, total, conflict = Counter[int](), 0, -count - 1
    conflicts = []
    for i in range(-count, count):
        in_window[blocks[i]] += 1
        total += size[blocks[i]]
        while conflict + 1 < i and (total > room or in_window[blocks[i]] > 1):
            conflict += 1
            in_window[blocks[conflict % count]] -= 1
            total -= size[blocks[conflict % count]]
        conflicts.append(conflict)
    return conflicts[count:]


def alap_arcs(streamed: StreamedBlocks, pass_ns: int) -> Arcs:
    """The shortest arcs for a pass of ``pass_ns``: every copy as late as possible (ALAP). Unit: nanoseconds.

    Needs ``pass_ns >= streamed.floor_ns``. Going once around the circle then adds no delay, so both relaxations reach
    their fixed point in the second round.
    """
    problem, count = streamed.problem, len(streamed.visits)
    visits = [problem.visits[visit] for visit in streamed.visits]
    copy_ns = [problem.copy_ns[visit.block] for visit in visits]
    before = problem.compute_before_ns
    since = [before[visit.first] - before[visits[i - 1].first] for i, visit in enumerate(visits)]
    since[0] += problem.compute_ns
    # Forwards: copies back to back from 0 on; a visit starts when its copy has landed and the ops before it have run.
    landed, start = list(accumulate(copy_ns)), [0] * count
    for occurrence in range(2 * count):
        i = occurrence % count
        previous = start[i - 1] - (pass_ns if i == 0 else 0)
        start[i] = max(landed[i], previous + since[i]) if occurrence else landed[0]
    # Backwards: a copy lands when its visit starts, or earlier where the copy after it needs the link.
    for occurrence in reversed(range(2 * count)):
        i = occurrence % count
        following = landed[(i + 1) % count] + (pass_ns if i == count - 1 else 0)
        last = occurrence == 2 * count - 1
        landed[i] = start[i] if last else min(start[i], following - copy_ns[(i + 1) % count])
    spans = []
    for i in range(count):
        last_start, after_ns = streamed.visit_ends[i]
        spans.append((landed[i] - copy_ns[i], start[last_start] + after_ns))
    return Arcs(length=pass_ns, spans=tuple(spans))


def packings(streamed: StreamedBlocks, arcs: Arcs, depth: int, room: int) -> Iterator[tuple[int, ...]]:
    """Addresses by first fit in several orders; none where the arcs occupy more than ``room`` bytes at once."""
    masks = occupancy_masks(streamed, arcs)
    if peak_occupancy(streamed, masks) <= room:
        yield from (first_fit(streamed, masks, order) for order in placement_orders(streamed, depth))


def occupancy_masks(streamed: StreamedBlocks, arcs: Arcs) -> tuple[int, ...]:
    """Per block the segments of the circle that its arcs cover, as bits; blocks conflict where their masks meet.

    Segments lie between neighbouring end points of arcs, so at most two per visit.
    """
    points = sorted({point % arcs.length for span in arcs.spans for point in span})
    index, count = {point: i for i, point in enumerate(points)}, len(points)
    masks = dict.fromkeys(streamed.blocks, 0)
    for visit, (start, end) in zip(streamed.visits, arcs.spans, strict=True):
        first, after = index[start % arcs.length], index[end % arcs.length]
        covers_circle = end - start >= arcs.length
        length = count if covers_circle else (after - first) % count
        run = ((1 << length) - 1) << first
        masks[streamed.problem.visits[visit].block] |= (run | run >> count) & ((1 << count) - 1)
    return tuple(masks.values())


def peak_occupancy(streamed: StreamedBlocks, masks: Sequence[int]) -> int:
    """The most bytes occupied at once: a lower bound on any placement of these arcs."""
    size = [streamed.problem.bytes[block] for block in streamed.blocks]
    change: dict[int, int] = {}
    for mask, weight in zip(masks, size, strict=True):
        edges = mask ^ mask << 1
        while edges:
            edge = edges & -edges
            change[edge] = change.get(edge, 0) + (weight if mask & edge else -weight)
            edges ^= edge
    return max(accumulate((change[edge] for edge in sorted(change)), initial=0))


def first_fit(streamed: StreamedBlocks, masks: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Per streamed block the lowest address free of conflicts, taking blocks in this ``order``."""
    size = [streamed.problem.bytes[block] for block in streamed.blocks]
    address = [0] * len(size)
    placed: list[int] = []
    for block in order:
        low = 0
        for start, end in sorted((address[b], address[b] + size[b]) for b in placed if masks[b] & masks[block]):
            if start - low >= size[block]:
                break
            # Neighbours may overlap each other (they need not conflict), so the end seen last is not the highest.
            low = max(low, end)
        address[block] = low
        placed.append(block)
    return tuple(address)


def placement_orders(streamed: StreamedBlocks, depth: int) -> Iterator[tuple[int, ...]]:
    """Orders of blocks for first fit: interleaved, by time from four starting points, by size.

    Interleaved: of runs of ``depth + 1`` consecutive visits all first blocks, then all second ones. Those do not
    conflict with each other, so first fit gives each group one address: the fewest slots for equal blocks.
    """
    count = len(streamed.blocks)
    runs = max(1, count // (depth + 1))
    start = [run * count // runs for run in range(runs + 1)]
    interleaved = sorted((i - start[run], i) for run in range(runs) for i in range(start[run], start[run + 1]))
    yield tuple(i for _, i in interleaved)
    for first in range(0, count, max(1, count // 4)):
        yield (*range(first, count), *range(first))
    yield tuple(sorted(range(count), key=lambda i: (-streamed.problem.bytes[streamed.blocks[i]], i)))
