"""What must run before what: the versions of each buffer, and the edges between ops that follow from them.

A buffer has one version per op that changes it. They follow each other as those ops do in the program: by op id where
that order is legal, otherwise as in the topological order over reads after writes that takes the smallest id first.
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush

from tmmu.ir.graph import Graph
from tmmu.ir.windows import writers


def first_stale_read(graph: Graph, ops: Sequence[int]) -> tuple[int, int] | None:
    """(op, value) of the first read that running ``ops`` as listed would get wrong; None if it gets all right."""
    writer, home = writers(graph), graph.values.buffer
    reads, writes = graph.ops.reads, graph.ops.writes
    holds = [-1] * len(graph.buffers)
    for op in ops:
        for value in reads[op]:
            if writer[value] != holds[home[value]]:
                return op, value
        for value in writes[op]:
            holds[home[value]] = op
    return None


def versions(graph: Graph, ops: Sequence[int]) -> list[list[int]]:
    """Per buffer, which of ``ops`` (in id order) change it, in the order of the versions that they make."""
    program = ops
    if first_stale_read(graph, ops) is not None:
        program = topological(ops, _read_after_write(graph, ops))
    return changes(graph, program)


def changes(graph: Graph, ops: Iterable[int]) -> list[list[int]]:
    """Per buffer, which of ``ops`` change it, as listed."""
    found: list[list[int]] = [[] for _ in range(len(graph.buffers))]
    home, writes = graph.values.buffer, graph.ops.writes
    for op in ops:
        for value in writes[op]:
            row = found[home[value]]
            if not row or row[-1] != op:
                row.append(op)
    return found


def edges(graph: Graph, ops: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(earlier, later) ops: read after write, write after write, write after read. With repetitions."""
    yield from _read_after_write(graph, ops)
    successor: dict[tuple[int, int], int] = {}
    for buffer, row in enumerate(versions(graph, ops)):
        for before, after in zip([-1, *row], row, strict=False):
            successor[buffer, before] = after
            if before >= 0:
                yield before, after
    writer, home = writers(graph), graph.values.buffer
    for op in ops:
        for value in graph.ops.reads[op]:
            after = successor.get((home[value], writer[value]), op)
            if after != op:
                yield op, after


def _read_after_write(graph: Graph, ops: Sequence[int]) -> Iterator[tuple[int, int]]:
    writer = writers(graph)
    return ((writer[value], op) for op in ops for value in graph.ops.reads[op] if writer[value] >= 0)


def topological(ops: Sequence[int], arrows: Iterable[tuple[int, int]]) -> list[int]:
    """``ops`` so that both ends of every arrow are in order, the smallest id first; those in cycles are left out."""
    waits = dict.fromkeys(ops, 0)
    later: dict[int, list[int]] = {op: [] for op in ops}
    for before, after in arrows:
        if before in later:
            later[before].append(after)
            waits[after] += 1
    ready = [op for op in ops if not waits[op]]
    heapify(ready)
    made = []
    while ready:
        op = heappop(ready)
        made.append(op)
        for after in later[op]:
            waits[after] -= 1
            if not waits[after]:
                heappush(ready, after)
    return made
