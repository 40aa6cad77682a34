"""Steady-state time of a pass: the maximum cycle ratio of the graph of waits between copies and visits.

State: an event graph with two nodes per streamed visit: the end of its copy and the start of its visit. An edge carries
a delay in ns and a number of passes that it crosses. One resource copies (the link), one computes, both in order.

    end of copy i   >=  end of copy i-1 + copy_ns            the link is serial
    end of copy i   >=  end of reader   + copy_ns            its bytes are free (the reader may be of the pass before)
    start of visit i >= end of copy i                        its block has landed
    start of visit i >= start of visit i-1 + ops in between  compute is serial

In the long run a pass takes max over cycles of (sum of delays / sum of passes), as in modulo scheduling
(recurrence-constrained initiation interval) and timed event graphs. The cycle along the link is all copies, the one
along compute all ops; if another is slower, copies wait for room. A cycle that spans two passes crosses itself between
link and compute; uncrossed it is two of one pass, of which one is no faster. So the maximum is a whole number of ns.

Algorithm: cycle improvement. Start from the lower bound; relax longest paths with each edge shortened by its passes
times the current ratio (Bellman-Ford). If that converges, no cycle is slower. Otherwise the edges that raised a node
last contain a cycle that is; take its ratio and repeat. The ratio rises strictly among finitely many values, so it
terminates. One relaxation is O(n) per round and at most 2n rounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from tmmu.planner.ring.problem import StreamedBlocks

Wait: TypeAlias = tuple[int, int]
"""A streamed visit, by its index among them, in this pass (0) or the one before (1)."""
Edge: TypeAlias = tuple[int, int, int]
"""(source event, delay in ns, passes crossed)."""

LINK: Final = "link"
COMPUTE: Final = "compute"
CAPACITY: Final = "capacity"


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTime:
    """Nanoseconds of a steady-state pass and its limit: ``link``, ``compute``, or ``capacity`` if copies lack room."""

    ns: int
    limit: str


def steady_pass_time(streamed: StreamedBlocks, waits: Sequence[Wait]) -> PassTime | None:
    """The exact time of a pass in which the copy for each streamed visit waits for one visit, its newest reader.

    ``None`` where a copy would wait for an op that does not come before its own visit (a deadlock).
    """
    compute, link, visits = streamed.problem.compute_ns, streamed.link_ns, streamed.problem.visits
    for own, (reader, lag) in zip(streamed.visits, waits, strict=True):
        if not lag and visits[streamed.visits[reader]].last >= visits[own].first:
            return None
    if not streamed.visits:
        return PassTime(ns=compute, limit=COMPUTE)
    edges = _incoming_edges(streamed, waits)
    floor = max(compute, link)
    time = floor
    while slower := _slower_cycle(edges, time):
        time = slower
    limit = CAPACITY if time > floor else COMPUTE if compute >= link else LINK
    return PassTime(ns=time, limit=limit)


def _incoming_edges(streamed: StreamedBlocks, waits: Sequence[Wait]) -> list[tuple[Edge, ...]]:
    """Edges into each event: ``2 i`` is the end of copy i, ``2 i + 1`` the start of its visit."""
    visits = [streamed.problem.visits[visit] for visit in streamed.visits]
    before, count = streamed.problem.compute_before_ns, len(visits)
    edges: list[tuple[Edge, ...]] = []
    for i, (visit, (reader, lag)) in enumerate(zip(visits, waits, strict=True)):
        copy_ns, wraps = streamed.problem.copy_ns[visit.block], i == 0
        last_start, after_ns = streamed.visit_ends[reader]
        previous = (i - 1) % count
        edges.append(((2 * previous, copy_ns, int(wraps)), (2 * last_start + 1, after_ns + copy_ns, lag)))
        since = before[visit.first] - before[visits[i - 1].first] + wraps * before[-1]
        edges.append(((2 * i, 0, 0), (2 * previous + 1, since, int(wraps))))
    return edges


def _slower_cycle(edges: Sequence[tuple[Edge, ...]], time: int) -> int | None:
    """The ns per pass, rounded up, of some cycle slower than ``time``; nothing where there is none."""
    height = [0] * len(edges)
    raised_by: list[Edge | None] = [None] * len(edges)
    while True:
        has_risen = False
        for event, incoming in enumerate(edges):
            for edge in incoming:
                above = height[edge[0]] + edge[1] - edge[2] * time
                if above > height[event]:
                    height[event], raised_by[event], has_risen = above, edge, True
        if not has_risen:
            return None
        # Heights rise for ever only around a cycle, and such a cycle is closed by the edges that raised them last.
        if cycle := _find_cycle(raised_by):
            return -(-sum(edge[1] for edge in cycle) // sum(edge[2] for edge in cycle))


def _find_cycle(raised_by: Sequence[Edge | None]) -> list[Edge]:
    """The edges of one cycle among ``raised_by``, one per event; none where they form a forest."""
    colour = [0] * len(raised_by)
    for start in range(len(raised_by)):
        event: int | None = start
        while event is not None and not colour[event]:
            colour[event] = start + 1
            edge = raised_by[event]
            event = edge[0] if edge else None
        if event is not None and colour[event] == start + 1:
            return _cycle_through(raised_by, event)
    return []


def _cycle_through(raised_by: Sequence[Edge | None], start: int) -> list[Edge]:
    cycle: list[Edge] = []
    event = start
    while edge := raised_by[event]:
        cycle.append(edge)
        event = edge[0]
        if event == start:
            break
    return cycle
