"""The smallest cut between two nodes, by Dinic's algorithm, compiled where numba is installed.

Breadth first, nodes get their distance from the source along edges with room; depth first, flow goes along edges that
lead one step on, and an edge without room is not looked at again before the next distances. O(nodes^2 x edges) at
most; a few rounds for what steps have.
"""

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Final, NamedTuple

from tmmu.planner.fit.cells import Cells
from tmmu.planner.pack.exact.jit import jit, make_cells, zero_cells

UNBOUNDED: Final = 1 << 60
"""Room of an edge that no cut has."""
Edge = tuple[int, int, int]
"""From, to, room."""


class FlowCells(NamedTuple):
    """Edge e and its reverse are ``2e`` and ``2e + 1``; ``edge_of[at[n]:at[n + 1]]`` leave node n.

    ``target`` and ``room`` of each; ``level``: distance of a node from the source, -1 where it is cut off;
    ``next_edge``: where the search of a node goes on; ``path``: edges of a walk; ``queue``: nodes of one.
    """

    at: Cells
    edge_of: Cells
    target: Cells
    room: Cells
    level: Cells
    next_edge: Cells
    path: Cells
    queue: Cells


def cut_side(nodes: int, edges: Sequence[Edge], source: int, sink: int) -> list[bool]:
    """Per node, whether it is on the source's side of the smallest cut; of several, of the one nearest to the source.

    Sums of rooms that are bounded stay below ``UNBOUNDED``; some cut has no unbounded edge.
    """
    leaving = list[list[int]]([] for _ in range(nodes))
    for index, (tail, head, _) in enumerate(edges):
        leaving[tail].append(2 * index)
        leaving[head].append(2 * index + 1)
    flow = FlowCells(
        at=make_cells([0, *accumulate(map(len, leaving))]),
        edge_of=make_cells([*chain(*leaving)]),
        target=make_cells([node for tail, head, _ in edges for node in (head, tail)]),
        room=make_cells([room for _, _, most in edges for room in (most, 0)]),
        level=zero_cells(nodes),
        next_edge=zero_cells(nodes),
        path=zero_cells(nodes),
        queue=zero_cells(nodes),
    )
    while find_levels(flow, source)[sink] >= 0:
        push_along_levels(flow, source, sink)
    return [int(level) >= 0 for level in flow.level]


@jit
def find_levels(f: FlowCells, source: int) -> Cells:
    """Distances from the source along edges that have room."""
    at, edge_of, target, room, level, queue = f.at, f.edge_of, f.target, f.room, f.level, f.queue
    for node in range(len(level)):
        level[node], f.next_edge[node] = -1, at[node]
    level[source], queue[0], first, last = 0, source, 0, 1
    while first < last:
        node = queue[first]
        first += 1
        for e in range(at[node], at[node + 1]):
            head = target[edge_of[e]]
            if room[edge_of[e]] > 0 and level[head] < 0:
                level[head], queue[last], last = level[node] + 1, head, last + 1
    return level


@jit
def push_along_levels(f: FlowCells, source: int, sink: int) -> None:
    """Push flow along edges that lead one level on, until no walk along them reaches the sink."""
    at, edge_of, target, room = f.at, f.edge_of, f.target, f.room
    level, next_edge, path = f.level, f.next_edge, f.path
    node, depth = source, 0
    while node != source or next_edge[node] < at[node + 1]:
        if node == sink:
            least, first = room[path[0]], 0
            for step in range(depth):
                least = min(least, room[path[step]])
            for step in range(depth - 1, -1, -1):
                room[path[step]] -= least
                room[path[step] ^ 1] += least
                if room[path[step]] == 0:
                    first = step
            node, depth = target[path[first] ^ 1], first
        elif next_edge[node] == at[node + 1]:
            depth -= 1
            node = target[path[depth] ^ 1]
            next_edge[node] += 1
        else:
            edge = edge_of[next_edge[node]]
            if room[edge] > 0 and level[target[edge]] == level[node] + 1:
                path[depth], node, depth = edge, target[edge], depth + 1
            else:
                next_edge[node] += 1
