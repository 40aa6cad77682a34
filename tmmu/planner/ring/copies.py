"""From addresses to a schedule: which visits each copy overwrites, and when it may be issued."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from tmmu.ir.ring import Copy, VisitRef
from tmmu.planner.ring.problem import RingProblem, StreamedBlocks
from tmmu.planner.ring.timing import Wait

Fragment = tuple[int, int, int]
"""Bytes from, to, and whose: the turn of a visit, counted on from pass to pass."""


def overwritten_visits(stream: StreamedBlocks, address: Sequence[int]) -> tuple[tuple[Wait, ...], ...]:
    """Per visit of ``stream``, whose bytes its copy overwrites once passes repeat, newest reader first.

    ``address`` is per block of the problem.
    """
    visits = [stream.problem.visits[visit] for visit in stream.visits]
    count, size = len(visits), stream.problem.bytes
    held: list[Fragment] = []
    found: list[tuple[Wait, ...]] = []
    for turn in range(2 * count):
        block = visits[turn % count].block
        low, high = address[block], address[block] + size[block]
        owners = {whose for start, end, whose in held if start < high and low < end}
        held = [part for fragment in held for part in _outside(fragment, low, high)]
        held.append((low, high, turn))
        if turn >= count:
            lags = [(owner % count, turn // count - owner // count) for owner in sorted(owners)]
            lags.sort(key=lambda wait: (wait[1], -visits[wait[0]].last, -wait[0]))
            found.append(tuple(lags))
    return tuple(found)


def _outside(fragment: Fragment, low: int, high: int) -> Iterator[Fragment]:
    start, end, whose = fragment
    if end <= low or high <= start:
        yield fragment
        return
    if start < low:
        yield start, low, whose
    if high < end:
        yield high, end, whose


def derive_copies(stream: StreamedBlocks, waits: Sequence[Sequence[Wait]]) -> tuple[Copy, ...]:
    """One copy per visit of ``stream``, issued at the first visit by which all readers that it waits for have ended.

    Copies keep the order of their visits, so none is issued before the one ahead of it.
    """
    problem, count = stream.problem, len(stream.visits)
    starts = [_start(problem, stream.visits[row[0][0]], row[0][1], visit) for visit, row in _rows(stream, waits)]
    total = len(problem.visits)
    newest = max((start - total for start in starts), default=0)
    copies = []
    for i in range(count):
        newest = max(newest, starts[i])
        start = VisitRef(visit=newest % total, lag=-(newest // total))
        named = tuple(VisitRef(visit=stream.visits[index], lag=lag) for index, lag in waits[i])
        copies.append(Copy(visit=stream.visits[i], start=start, waits=named))
    return tuple(copies)


def _rows(stream: StreamedBlocks, waits: Sequence[Sequence[Wait]]) -> Iterator[tuple[int, Sequence[Wait]]]:
    return zip(stream.visits, waits, strict=True)


def _start(problem: RingProblem, other: int, lag: int, own: int) -> int:
    """The first visit to start after visit ``other`` has ended, by its turn: those of the pass before are below 0."""
    turn = other + 1
    while turn < len(problem.visits) and problem.visits[turn].first <= problem.visits[other].last:
        turn += 1
    return min(turn - lag * len(problem.visits), own)


def prefetch_distances(stream: StreamedBlocks, copies: Sequence[Copy]) -> list[int]:
    """How many visits of ``stream`` ahead of its own each copy is issued."""
    count = len(stream.visits)
    return [i - bisect_left(stream.visits, copy.start.visit) + copy.start.lag * count for i, copy in enumerate(copies)]


def max_prefetch_distances(stream: StreamedBlocks) -> list[int]:
    """Per visit of ``stream``, how many others start after the last readers of its block's visit before have ended."""
    visits = [stream.problem.visits[visit] for visit in stream.visits]
    count, since = len(visits), dict[int, int]()
    found = []
    for turn in range(2 * count):
        visit = visits[turn % count]
        if turn >= count:
            found.append(max(0, turn - since[visit.block]))
        after = turn + 1
        while after % count and visits[after % count].first <= visit.last:
            after += 1
        since[visit.block] = after
    return found
