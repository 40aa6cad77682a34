"""How long a pass takes in the long run: one link that copies, one lane that computes, and who waits for whom.

The schedule is a graph of events with a delay on each edge, and a pass on those that lead into the next one. A
pass takes as long as the slowest of its cycles: delay by passes, exactly. The cycle along the link alone is all the
copies, the one along the lane all the ops; where another one is slower, copies wait for room. A cycle of two passes
crosses itself between link and lane, and uncrossed it is two of one pass that are no faster: so times are whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from tmmu.planner.ring.problem import StreamedBlocks

Wait: TypeAlias = tuple[int, int]
"""A visit of a stream, by its index there, in this pass (0) or the one before (1)."""
Edge: TypeAlias = tuple[int, int, int]
"""From which event, after how long, how many passes later."""

LINK: Final = "link"
COMPUTE: Final = "compute"
CAPACITY: Final = "capacity"


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTime:
    """Nanoseconds per pass, and what limits them: ``link``, ``compute``, or ``capacity`` where copies lack room."""

    ns: int
    limit: str


def steady_pass_time(stream: StreamedBlocks, waits: Sequence[Wait]) -> PassTime | None:
    """The pace at which the copy for each visit of ``stream`` waits for one visit; exact.

    A copy may land once that visit's last op has run, and once the copy before it is through. ``None`` where one would
    wait for an op that does not come before its own visit.
    """
    compute, link, visits = stream.problem.compute_ns, stream.link_ns, stream.problem.visits
    for own, (other, lag) in zip(stream.visits, waits, strict=True):
        if not lag and visits[stream.visits[other]].last >= visits[own].first:
            return None
    if not stream.visits:
        return PassTime(ns=compute, limit=COMPUTE)
    edges = _edges(stream, waits)
    floor = max(compute, link)
    time = floor
    while cycle := _slower_cycle(edges, time):
        time = cycle
    limit = CAPACITY if time > floor else COMPUTE if compute >= link else LINK
    return PassTime(ns=time, limit=limit)


def _edges(stream: StreamedBlocks, waits: Sequence[Wait]) -> list[tuple[Edge, ...]]:
    """What each event waits for: ``2 i`` is the end of copy i, ``2 i + 1`` the start of its visit."""
    visits = [stream.problem.visits[visit] for visit in stream.visits]
    reached, count = stream.problem.compute_before_ns, len(visits)
    into: list[tuple[Edge, ...]] = []
    for i, (visit, (other, lag)) in enumerate(zip(visits, waits, strict=True)):
        takes, wraps = stream.problem.copy_ns[visit.block], i == 0
        from_start, after = stream.visit_ends[other]
        into.append(((2 * ((i - 1) % count), takes, int(wraps)), (2 * from_start + 1, after + takes, lag)))
        since = reached[visit.first] - reached[visits[i - 1].first] + wraps * reached[-1]
        into.append(((2 * i, 0, 0), (2 * ((i - 1) % count) + 1, since, int(wraps))))
    return into


def _slower_cycle(edges: Sequence[tuple[Edge, ...]], time: int) -> int | None:
    """The delay per pass, rounded up, of some cycle that takes more than ``time``; nothing where none does."""
    height = [0] * len(edges)
    before: list[Edge | None] = [None] * len(edges)
    while True:
        rises = False
        for event, into in enumerate(edges):
            for edge in into:
                above = height[edge[0]] + edge[1] - edge[2] * time
                if above > height[event]:
                    height[event], before[event], rises = above, edge, True
        if not rises:
            return None
        if cycle := _cycle(before):
            return -(-sum(edge[1] for edge in cycle) // sum(edge[2] for edge in cycle))


def _cycle(before: Sequence[Edge | None]) -> list[Edge]:
    """The edges of one cycle among those that raised an event last; none where there is none."""
    colour = [0] * len(before)
    for start in range(len(before)):
        event: int | None = start
        while event is not None and not colour[event]:
            colour[event] = start + 1
            edge = before[event]
            event = edge[0] if edge else None
        if event is not None and colour[event] == start + 1:
            return _around(before, event)
    return []


def _around(before: Sequence[Edge | None], start: int) -> list[Edge]:
    found: list[Edge] = []
    event = start
    while edge := before[event]:
        found.append(edge)
        event = edge[0]
        if event == start:
            break
    return found
