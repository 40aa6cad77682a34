"""From addresses to copies: which visits each copy overwrites, and from which visit on it may be issued.

State: the address space as a list of disjoint fragments, each with the *occurrence* (visit, numbered on from pass to
pass) that wrote it last. Copies are replayed in link order for two passes; each takes the bytes of its block from their
owners. After one pass every byte that any copy writes has an owner, so what the second pass overwrites is what every
later pass overwrites. Terminates after 2n copies; O(n^2), as no copy splits more than two fragments.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from tmmu.ir.ring import Copy, VisitRef
from tmmu.planner.ring.problem import RingProblem, StreamedBlocks
from tmmu.planner.ring.timing import Wait

Fragment: TypeAlias = tuple[int, int, int]
"""Bytes ``[start, end)`` and the occurrence that owns them."""


def overwritten_visits(streamed: StreamedBlocks, address: Sequence[int]) -> tuple[tuple[Wait, ...], ...]:
    """Per streamed visit, the visits whose bytes its copy overwrites once passes repeat, newest reader first.

    ``address`` has an entry for each block of the problem.
    """
    visits = [streamed.problem.visits[visit] for visit in streamed.visits]
    count, size = len(visits), streamed.problem.bytes
    fragments: list[Fragment] = []
    waits: list[tuple[Wait, ...]] = []
    for occurrence in range(2 * count):
        block = visits[occurrence % count].block
        low, high = address[block], address[block] + size[block]
        owners = {owner for start, end, owner in fragments if start < high and low < end}
        fragments = [part for fragment in fragments for part in _remove(fragment, low, high)]
        fragments.append((low, high, occurrence))
        if occurrence >= count:
            row = [(owner % count, occurrence // count - owner // count) for owner in sorted(owners)]
            # Newest reader first by the end of the visit, not by its start: visits may overlap.
            row.sort(key=lambda wait: (wait[1], -visits[wait[0]].last, -wait[0]))
            waits.append(tuple(row))
    return tuple(waits)


def _remove(fragment: Fragment, low: int, high: int) -> Iterator[Fragment]:
    """What is left of ``fragment`` without the bytes ``[low, high)``."""
    start, end, owner = fragment
    if end <= low or high <= start:
        yield fragment
        return
    if start < low:
        yield start, low, owner
    if high < end:
        yield high, end, owner


def derive_copies(streamed: StreamedBlocks, waits: Sequence[Sequence[Wait]]) -> tuple[Copy, ...]:
    """One copy per streamed visit, issued at the first visit that starts after all readers in its waits have ended.

    That is the earliest point at which their events are recorded. Copies keep the order of their visits, so none is
    issued before the one ahead of it on the link.
    """
    problem, total = streamed.problem, len(streamed.problem.visits)
    starts = [
        _issue_point(problem, streamed.visits[row[0][0]], row[0][1], visit)
        for visit, row in zip(streamed.visits, waits, strict=True)
    ]
    # The last copy of the pass before bounds the first one of this pass: the order of the link has no seam.
    latest = max((start - total for start in starts), default=0)
    copies = []
    for visit, start, row in zip(streamed.visits, starts, waits, strict=True):
        latest = max(latest, start)
        issue = VisitRef(visit=latest % total, lag=-(latest // total))
        readers = tuple(VisitRef(visit=streamed.visits[index], lag=lag) for index, lag in row)
        copies.append(Copy(visit=visit, start=issue, waits=readers))
    return tuple(copies)


def _issue_point(problem: RingProblem, reader: int, lag: int, own: int) -> int:
    """The first visit that starts after visit ``reader`` has ended, at most ``own``; below 0 in the pass before."""
    visit = reader + 1
    while visit < len(problem.visits) and problem.visits[visit].first <= problem.visits[reader].last:
        visit += 1
    return min(visit - lag * len(problem.visits), own)


def prefetch_distances(streamed: StreamedBlocks, copies: Sequence[Copy]) -> list[int]:
    """Per copy, how many streamed visits ahead of its own it is issued."""
    visits, count = streamed.visits, len(streamed.visits)
    return [i - bisect_left(visits, copy.start.visit) + copy.start.lag * count for i, copy in enumerate(copies)]


def max_prefetch_distances(streamed: StreamedBlocks) -> list[int]:
    """Per copy, the largest prefetch distance of any layout: a block cannot be fetched again before its last reader.

    Counted in streamed visits that start after the previous visit of the same block has ended.
    """
    visits = [streamed.problem.visits[visit] for visit in streamed.visits]
    count, free_from = len(visits), dict[int, int]()
    distances = []
    for occurrence in range(2 * count):
        visit = visits[occurrence % count]
        if occurrence >= count:
            distances.append(max(0, occurrence - free_from[visit.block]))
        after = occurrence + 1
        while after % count and visits[after % count].first <= visit.last:
            after += 1
        free_from[visit.block] = after
    return distances
