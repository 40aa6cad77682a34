"""Orders of a step's rows that may need fewer bytes than the program's: list schedules, each a row of a table.

Rows are numbered in a legal order. A *free-first* schedule runs at once what leaves no more bytes than it found, and
otherwise the row that comes first; a *late* one, made from the end, runs as late as it can what only takes bytes. A row
that frees once will free until it runs, as more buffers come to their last use and none to another one, so that a heap
with one entry for each row and one more for each that frees is enough: O((rows + edges) log rows). A row that takes or
sets the random state keeps its place among its like.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

from tmmu.ir.call_text import decode_call
from tmmu.ir.graph import PERSISTENT_ROLES, Graph
from tmmu.ir.ids import BufferId, ValueId
from tmmu.judge.rewrite.facts import computes_alone
from tmmu.planner.order import dependence_edges

Order: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowUses:
    """What the rows of a graph read and write of the buffers that are there during the step only, and what waits."""

    size: Sequence[int]
    reads: Sequence[frozenset[BufferId]]
    writes: Sequence[frozenset[BufferId]]
    outputs: frozenset[BufferId]
    before: Sequence[frozenset[int]]
    after: Sequence[frozenset[int]]

    def __len__(self) -> int:
        return len(self.reads)


def row_uses(graph: Graph) -> RowUses:
    """Of a legal graph whose ops run in the order of their ids."""
    after = [set(row) for row in dependence_edges(graph, graph.ops.ids)]
    for first, second in _fixed_pairs(graph):
        after[first].add(second)
    before: list[set[int]] = [set() for _ in after]
    for row, following in enumerate(after):
        for later in following:
            before[later].add(row)
    return RowUses(
        size=graph.buffers.bytes,
        reads=[_inner(graph, values) for values in graph.ops.reads],
        writes=[_inner(graph, values) for values in graph.ops.writes],
        outputs=_inner(graph, graph.outputs),
        before=[frozenset(row) for row in before],
        after=[frozenset(row) for row in after],
    )


def _fixed_pairs(graph: Graph) -> list[tuple[int, int]]:
    """Neighbours among the rows of which it is not known that they only compute results from their arguments."""
    assert graph.calls is not None
    texts = [decode_call(text) for text in graph.calls.texts]
    alone = [text is not None and computes_alone(text) for text in texts]
    fixed = [op for op, row in enumerate(graph.calls.call) if not (alone[row] and graph.ops.writes[op])]
    return list(pairwise(fixed))


def _inner(graph: Graph, values: Sequence[ValueId]) -> frozenset[BufferId]:
    buffers = (graph.values.buffer[value] for value in values)
    return frozenset(buffer for buffer in buffers if graph.buffers.role[buffer] not in PERSISTENT_ROLES)


def as_it_is(uses: RowUses) -> Order:
    """The order of the rows."""
    return tuple(range(len(uses)))


def free_first(uses: RowUses, place: Sequence[int] = ()) -> Order:
    """What frees as much as it takes as soon as it can, all else in the order of its places (default: as it is)."""
    place = place or range(len(uses))
    users: dict[BufferId, set[int]] = {}
    for row in range(len(uses)):
        for buffer in uses.reads[row] | uses.writes[row]:
            users.setdefault(buffer, set()).add(row)
    alive: set[BufferId] = set()

    def net(row: int) -> int:
        touched = uses.reads[row] | uses.writes[row]
        takes = sum(uses.size[buffer] for buffer in uses.writes[row] if buffer not in alive)
        return takes - sum(uses.size[b] for b in touched if len(users[b]) == 1 and b not in uses.outputs)

    def done(row: int) -> set[int]:
        """The rows that may free now."""
        changed = set[int]()
        for buffer in uses.reads[row] | uses.writes[row]:
            users[buffer].discard(row)
            if buffer not in alive or len(users[buffer]) == 1:
                changed |= users[buffer]
            alive.add(buffer)
        return changed

    return tuple(_listed(uses.before, uses.after, [int(p) for p in place], net, done))


def late(uses: RowUses, place: Sequence[int] = ()) -> Order:
    """What only takes bytes as late as it can, all else in the order of its places (default: as it is)."""
    place = place or range(len(uses))
    live = set(uses.outputs)
    users: dict[BufferId, set[int]] = {}
    for row in range(len(uses)):
        for buffer in uses.reads[row] | uses.writes[row]:
            users.setdefault(buffer, set()).add(row)

    def net(row: int) -> int:
        reads, writes = uses.reads[row], uses.writes[row]
        takes = sum(uses.size[buffer] for buffer in reads - writes if buffer not in live)
        return takes - sum(uses.size[buffer] for buffer in writes - reads if buffer in live)

    def done(row: int) -> set[int]:
        changed = set[int]()
        for buffer in uses.reads[row] - live:
            changed |= users[buffer]
        live.update(uses.reads[row])
        live.difference_update(uses.writes[row] - uses.reads[row])
        return changed

    return tuple(_listed(uses.after, uses.before, [-int(p) for p in place], net, done))[::-1]


def _listed(
    before: Sequence[frozenset[int]],
    after: Sequence[frozenset[int]],
    place: Sequence[int],
    net: Callable[[int], int],
    done: Callable[[int], set[int]],
) -> list[int]:
    """A list schedule: of the rows that wait for none, one whose ``net`` is not positive, else that of lowest place."""
    waits = [len(row) for row in before]
    has_run, order = [False] * len(waits), list[int]()
    ready = [(net(row) > 0, place[row], row) for row, count in enumerate(waits) if not count]
    heapq.heapify(ready)
    while ready:
        *_, row = heapq.heappop(ready)
        if has_run[row]:
            continue
        has_run[row] = True
        order.append(row)
        changed = {other for other in done(row) if not waits[other] and not has_run[other]}
        for other in after[row]:
            waits[other] -= 1
            if not waits[other]:
                heapq.heappush(ready, (net(other) > 0, place[other], other))
        for other in changed:
            if net(other) <= 0:
                heapq.heappush(ready, (False, place[other], other))
    return order


def late_then_free(uses: RowUses) -> Order:
    """A free-first schedule whose places are those of a late one."""
    place = [0] * len(uses)
    for position, row in enumerate(late(uses)):
        place[row] = position
    return free_first(uses, place)


ORDERS: Final[tuple[tuple[str, Callable[[RowUses], Order]], ...]] = (
    ("as it is", as_it_is),
    ("free first", free_first),
    ("late, then free first", late_then_free),
)
"""Tried in this order; of equals the first is taken."""
