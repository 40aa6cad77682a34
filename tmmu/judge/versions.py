"""What must run before what: the versions of each buffer, and the edges between ops that follow from them.

A buffer has one version per op that changes it. Versions follow each other as those ops do in the program: by op id
where that order is legal (no read is stale); otherwise in the topological order over read-after-write edges alone that
takes the smallest id first. The second case makes the definition independent of how ids are numbered: which of two
writers comes first is decided by what reads what, and only then by id.

Given the versions, an order means the program if it keeps three kinds of edges: read after write, write after write (a
version after the one before) and write after read (a version after all readers of the one before).
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush

from tmmu.ir.graph import Graph
from tmmu.ir.ids import BufferId, OpId, ValueId
from tmmu.ir.windows import writers


def first_stale_read(graph: Graph, ops: Sequence[OpId]) -> tuple[OpId, ValueId] | None:
    """(op, value) of the first read that finds another version when ``ops`` run as listed; ``None``: there is none."""
    writer, buffer_of = writers(graph), graph.values.buffer
    reads, writes = graph.ops.reads, graph.ops.writes
    current = [OpId(-1)] * len(graph.buffers)
    for op in ops:
        for value in reads[op]:
            if writer[value] != current[buffer_of[value]]:
                return op, value
        for value in writes[op]:
            current[buffer_of[value]] = op
    return None


def versions(graph: Graph, ops: Sequence[OpId]) -> list[list[OpId]]:
    """Per buffer, which of ``ops`` (in id order) change it, in the order of the versions that they make."""
    return writing_ops(graph, program_order(graph, ops))


def program_order(graph: Graph, ops: Sequence[OpId]) -> Sequence[OpId]:
    """``ops`` (in id order) as the program runs them."""
    if first_stale_read(graph, ops) is None:
        return ops
    return topological_order(ops, _read_after_write(graph, ops))


def writing_ops(graph: Graph, ops: Iterable[OpId]) -> list[list[OpId]]:
    """Per buffer, which of ``ops`` change it, as listed."""
    changes: list[list[OpId]] = [[] for _ in range(len(graph.buffers))]
    buffer_of, writes = graph.values.buffer, graph.ops.writes
    for op in ops:
        for value in writes[op]:
            row = changes[buffer_of[value]]
            if not row or row[-1] != op:
                row.append(op)
    return changes


def edges(graph: Graph, ops: Sequence[OpId]) -> Iterator[tuple[OpId, OpId]]:
    """(earlier, later) ops: read after write, write after write, write after read. With repetitions."""
    yield from _read_after_write(graph, ops)
    successor: dict[tuple[BufferId, OpId], OpId] = {}
    for buffer, row in zip(graph.buffers.ids, versions(graph, ops), strict=True):
        for before, after in zip([OpId(-1), *row], row, strict=False):
            successor[buffer, before] = after
            if before >= 0:
                yield before, after
    writer, buffer_of = writers(graph), graph.values.buffer
    for op in ops:
        for value in graph.ops.reads[op]:
            after = successor.get((buffer_of[value], writer[value]), op)
            if after != op:
                yield op, after


def _read_after_write(graph: Graph, ops: Sequence[OpId]) -> Iterator[tuple[OpId, OpId]]:
    writer = writers(graph)
    return ((writer[value], op) for op in ops for value in graph.ops.reads[op] if writer[value] >= 0)


def topological_order(ops: Sequence[OpId], edges: Iterable[tuple[OpId, OpId]]) -> list[OpId]:
    """``ops`` with both ends of every edge in order, the smallest ready id first; without those on or after a cycle."""
    waits = dict.fromkeys(ops, 0)
    successors: dict[OpId, list[OpId]] = {op: [] for op in ops}
    for before, after in edges:
        if before in successors:
            successors[before].append(after)
            waits[after] += 1
    ready = [op for op in ops if not waits[op]]
    heapify(ready)
    order = []
    while ready:
        op = heappop(ready)
        order.append(op)
        for after in successors[op]:
            waits[after] -= 1
            if not waits[after]:
                heappush(ready, after)
    return order
