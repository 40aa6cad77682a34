"""What must run before what: the versions of each buffer, and the edges between ops that follow from them.

A buffer has one version per op that changes it. An op that reads a buffer and changes it makes the version after
the one that it read; between changes that read nothing, the smaller op id comes first.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from tmmu.ir.graph import Graph
from tmmu.ir.windows import writers


def changers(graph: Graph) -> list[list[int]]:
    """Per buffer, the ops that change it, each once, by op id."""
    found: list[list[int]] = [[] for _ in range(len(graph.buffers))]
    home = graph.values.buffer
    for op, written in enumerate(graph.ops.writes):
        for value in written:
            row = found[home[value]]
            if not row or row[-1] != op:
                row.append(op)
    return found


def chains(graph: Graph) -> list[list[int]]:
    """Per buffer, the ops that change it, in the order of the versions that they make."""
    writer = writers(graph)
    return [row if len(row) < 2 else _chain(graph, writer, buffer, row) for buffer, row in enumerate(changers(graph))]


def _chain(graph: Graph, writer: list[int], buffer: int, row: list[int]) -> list[int]:
    """``row`` sorted so that each op follows those whose version it reads; ties go to the smaller id."""
    home = graph.values.buffer
    after: dict[int, list[int]] = {op: [] for op in row}
    waits = dict.fromkeys(row, 0)
    for op in row:
        for value in graph.ops.reads[op]:
            before = writer[value]
            if home[value] == buffer and before >= 0 and before != op:
                after[before].append(op)
                waits[op] += 1
    ready = [op for op in row if not waits[op]]
    heapify(ready)
    made = []
    while ready:
        op = heappop(ready)
        made.append(op)
        for later in after[op]:
            waits[later] -= 1
            if not waits[later]:
                heappush(ready, later)
    return made if len(made) == len(row) else row


def first_stale_read(graph: Graph) -> tuple[int, int] | None:
    """(op, value) of the first read that op id order would get wrong; None if that order is legal."""
    writer, home = writers(graph), graph.values.buffer
    holds = [-1] * len(graph.buffers)
    for op, (read, written) in enumerate(zip(graph.ops.reads, graph.ops.writes, strict=True)):
        for value in read:
            if writer[value] != holds[home[value]]:
                return op, value
        for value in written:
            holds[home[value]] = op
    return None


def edges(graph: Graph) -> Iterator[tuple[int, int]]:
    """(earlier, later) ops: read after write, write after read, write after write. With repetitions."""
    writer, home = writers(graph), graph.values.buffer
    successor: dict[tuple[int, int], int] = {}
    for buffer, chain in enumerate(chains(graph)):
        for before, after in zip([-1, *chain], chain, strict=False):
            successor[buffer, before] = after
            if before >= 0:
                yield before, after
    for op, read in enumerate(graph.ops.reads):
        for value in read:
            made = writer[value]
            if made >= 0:
                yield made, op
            after = successor.get((home[value], made), op)
            if after != op:
                yield op, after


def ops_in_cycles(graph: Graph) -> int:
    """How many ops no order can reach: 0 exactly when the graph has a legal order."""
    n = len(graph.ops)
    waits = [0] * n
    later: list[list[int]] = [[] for _ in range(n)]
    for before, after in edges(graph):
        later[before].append(after)
        waits[after] += 1
    ready = [op for op in range(n) if not waits[op]]
    for op in ready:
        for after in later[op]:
            waits[after] -= 1
            if not waits[after]:
                ready.append(after)
    return n - len(ready)
