"""When a streamed block holds its bytes, as arcs of a circle: the pass, which ends where it begins.

A block holds its bytes from the start of its copy to the end of its visit. Two blocks whose arcs meet must lie apart;
first fit in some order says where.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from tmmu.planner.ring.problem import StreamedBlocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Arcs:
    """Per visit of a stream ``[start, end)`` on a circle of this ``length``; a start may be negative."""

    length: int
    spans: tuple[tuple[int, int], ...]


def lookahead_arcs(stream: StreamedBlocks, depth: int, *, cut: int | None = None) -> Arcs:
    """Each copy starts ``depth`` visits ahead of its own; none of them across the start of visit ``cut``."""
    count = len(stream.visits)
    spans = []
    for i in range(count):
        reach = depth if cut is None else min(depth, (i - cut) % count)
        spans.append((i - reach, stream.visit_ends[i][0] + 1))
    return Arcs(length=count, spans=tuple(spans))


def capacity_arcs(stream: StreamedBlocks, room: int) -> Arcs:
    """Each copy starts as many visits ahead as all that is held by then fits in ``room`` together."""
    spans = [
        (turn + 1, end + 1) for turn, (end, _) in zip(nearest_conflicts(stream, room), stream.visit_ends, strict=True)
    ]
    return Arcs(length=len(stream.visits), spans=tuple(spans))


def nearest_conflicts(stream: StreamedBlocks, room: int) -> list[int]:
    """Back from each visit, the turn of the first one whose block comes twice or no longer fits in ``room``."""
    blocks = [stream.problem.visits[visit].block for visit in stream.visits]
    size, count = stream.problem.bytes, len(blocks)
    held, total, turn = Counter[int](), 0, -count - 1
    found = []
    for i in range(-count, count):
        held[blocks[i]] += 1
        total += size[blocks[i]]
        while turn + 1 < i and (total > room or held[blocks[i]] > 1):
            turn += 1
            held[blocks[turn % count]] -= 1
            total -= size[blocks[turn % count]]
        found.append(turn)
    return found[count:]


def alap_arcs(stream: StreamedBlocks, time: int) -> Arcs:
    """The shortest arcs for a pass of ``time``, which is at least the stream's floor: copies as late as they can be."""
    problem, count = stream.problem, len(stream.visits)
    visits = [problem.visits[visit] for visit in stream.visits]
    takes = [problem.copy_ns[visit.block] for visit in visits]
    since = [
        problem.compute_before_ns[visit.first] - problem.compute_before_ns[visits[i - 1].first]
        for i, visit in enumerate(visits)
    ]
    since[0] += problem.compute_ns
    arrives, start = list(accumulate(takes)), [0] * count
    for turn in range(2 * count):
        i = turn % count
        before = start[i - 1] - (time if i == 0 else 0)
        start[i] = max(arrives[i], before + since[i]) if turn else arrives[0]
    for turn in reversed(range(2 * count)):
        i = turn % count
        after = arrives[(i + 1) % count] + (time if i == count - 1 else 0)
        arrives[i] = min(start[i], after - takes[(i + 1) % count]) if turn < 2 * count - 1 else start[i]
    spans = []
    for i in range(count):
        from_start, after_it = stream.visit_ends[i]
        spans.append((arrives[i] - takes[i], start[from_start] + after_it))
    return Arcs(length=time, spans=tuple(spans))


def occupancy_masks(stream: StreamedBlocks, arcs: Arcs) -> tuple[int, ...]:
    """Per block of ``stream`` the stretches of the circle that it is held in, as bits: they meet where these do."""
    ends = sorted({point % arcs.length for span in arcs.spans for point in span})
    index, count = {point: i for i, point in enumerate(ends)}, len(ends)
    bits = dict.fromkeys(stream.blocks, 0)
    for visit, (start, end) in zip(stream.visits, arcs.spans, strict=True):
        first, after = index[start % arcs.length], index[end % arcs.length]
        whole = end - start >= arcs.length
        length = count if whole else (after - first) % count
        run = ((1 << length) - 1) << first
        bits[stream.problem.visits[visit].block] |= (run | run >> count) & ((1 << count) - 1)
    return tuple(bits.values())


def peak_occupancy(stream: StreamedBlocks, held: Sequence[int]) -> int:
    """The most bytes held at once: no placement of these arcs takes less."""
    size = [stream.problem.bytes[block] for block in stream.blocks]
    change: dict[int, int] = {}
    for bits, weight in zip(held, size, strict=True):
        edges = bits ^ bits << 1
        while edges:
            low = edges & -edges
            change[low] = change.get(low, 0) + (weight if bits & low else -weight)
            edges ^= low
    most = now = 0
    for point in sorted(change):
        now += change[point]
        most = max(most, now)
    return most


def first_fit(stream: StreamedBlocks, held: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Per block of ``stream`` the lowest address that its neighbours on the circle leave, in this order of blocks."""
    size = [stream.problem.bytes[block] for block in stream.blocks]
    address = [0] * len(size)
    placed: list[int] = []
    for one in order:
        low = 0
        for start, end in sorted((address[b], address[b] + size[b]) for b in placed if held[b] & held[one]):
            if start - low >= size[one]:
                break
            low = max(low, end)
        address[one] = low
        placed.append(one)
    return tuple(address)


def placement_orders(stream: StreamedBlocks, depth: int) -> Iterator[tuple[int, ...]]:
    """Orders for first fit: in runs of blocks that are held together, by time from some points on, by size."""
    count = len(stream.blocks)
    runs = max(1, count // (depth + 1))
    start = [run * count // runs for run in range(runs + 1)]
    where = [(i - start[run], i) for run in range(runs) for i in range(start[run], start[run + 1])]
    yield tuple(i for _, i in sorted(where))
    for turn in range(0, count, max(1, count // 4)):
        yield (*range(turn, count), *range(turn))
    yield tuple(sorted(range(count), key=lambda i: (-stream.problem.bytes[stream.blocks[i]], i)))
