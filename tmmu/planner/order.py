"""Execution order: the ops that a mode runs, in an order that preserves every data and storage dependence.

Ids are kept where they already are a legal order (the usual case, one O(ops + reads) check). Otherwise a list
scheduler (Kahn's algorithm with a heap of ready ops, smallest id first) runs twice: over read-after-write edges alone,
which fixes the version of each buffer that a read means, then over all edges, write-after-read and
write-after-write included. State: per op, the number of predecessors not yet scheduled. Each op enters the heap once,
when that number is 0; the scheduler ends when the heap is empty, and ops left over lie on or behind a cycle.
O((ops + edges) log ops). See docs/spec/liveness.md.
"""

import heapq
from collections.abc import Sequence

from tmmu.errors import InvalidConfig, InvalidIrShapes, LivenessCycle
from tmmu.ir.graph import Graph
from tmmu.ir.random_state import displaced_ops


def derive_order(graph: Graph, mode: str) -> tuple[int, ...]:
    """The ops of ``mode``, by id where that is legal, else in topological order with the smallest id first.

    An op comes after the writers of its reads (read after write), after every reader of the contents that it
    overwrites (write after read), and after the previous writer of the same buffer (write after write). Ops that take
    or set the random state stay between smaller and larger ids. ``LivenessCycle`` when there is no such order.
    """
    chosen = select_ops(graph, mode)
    writer = writers(graph, chosen)
    _demand_closed(graph, chosen, writer)
    if _reads_match_writers(graph, chosen, writer):
        return chosen
    # Ids that are no legal order do not say which version of a buffer comes first: dataflow alone does.
    dataflow_order = _sort_topologically(graph, chosen, _read_after_write(graph, chosen, writer))
    order = _sort_topologically(graph, chosen, _all_edges(graph, dataflow_order, writer))
    _demand_random_order(graph, order)
    return order


def check_order(graph: Graph, mode: str, order: Sequence[int]) -> tuple[int, ...]:
    """The same order; ``InvalidConfig`` unless it runs each op of ``mode`` once, and leaves the same contents."""
    legal = derive_order(graph, mode)
    if sorted(order) != sorted(legal):
        raise InvalidConfig(
            f"the order does not run each of the {len(legal)} ops of mode {mode} once",
            fix="give a permutation of them, or none",
            mode=mode,
        )
    same_contents = _versions(graph, order) == _versions(graph, legal)
    if not same_contents or not _reads_match_writers(graph, order, writers(graph, legal)):
        raise InvalidConfig("the order runs an op before what it needs", fix="give a topological order, or none")
    if list(displaced_ops(graph, order)):
        raise InvalidConfig("the order moves an op that takes or sets the random state", fix="leave it where it is")
    return tuple(order)


def dependence_edges(graph: Graph, order: Sequence[int]) -> list[list[int]]:
    """Per op, those that must come after it; ``order`` is a legal one of all ops."""
    return _all_edges(graph, order, writers(graph, order))


def select_ops(graph: Graph, mode: str) -> tuple[int, ...]:
    """The ops that ``mode`` runs, by id: all of them for ``backward``, those of stage ``forward`` otherwise."""
    stages = graph.ops.stage
    return tuple(op for op in range(len(stages)) if mode == "backward" or stages[op] == "forward")


def writers(graph: Graph, ops: Sequence[int]) -> list[int]:
    """Per value, the one of ``ops`` that writes it, or -1."""
    writer = [-1] * len(graph.values)
    for op in ops:
        for value in graph.ops.writes[op]:
            writer[value] = op
    return writer


def _demand_random_order(graph: Graph, order: Sequence[int]) -> None:
    for op in displaced_ops(graph, order):
        raise LivenessCycle(
            f"op {op} takes or sets the random state, and cannot run between the smaller and the larger ids",
            fix="number the ops in an order in which they can run",
            ops=[op],
            targets=[graph.ops.target[op]],
        )


def _demand_closed(graph: Graph, chosen: Sequence[int], writer: Sequence[int]) -> None:
    writer_in_any_stage = writers(graph, range(len(graph.ops)))
    for op in chosen:
        for value in graph.ops.reads[op]:
            if writer[value] != writer_in_any_stage[value]:
                raise InvalidIrShapes(
                    f"op {op} of stage {graph.ops.stage[op]} reads value {value} of a later stage",
                    fix="plan it with --mode backward, or give the op the stage of what it reads",
                    op=op,
                    value=value,
                )


def _reads_match_writers(graph: Graph, order: Sequence[int], writer: Sequence[int]) -> bool:
    """Whether, at each read, the last write to the buffer is by the writer of the value."""
    buffer, reads, writes = graph.values.buffer, graph.ops.reads, graph.ops.writes
    last = [-1] * len(graph.buffers)
    for op in order:
        for value in reads[op]:
            if last[buffer[value]] != writer[value]:
                return False
        for value in writes[op]:
            last[buffer[value]] = op
    return True


def _versions(graph: Graph, order: Sequence[int]) -> list[list[int]]:
    """Per buffer, the ops that write it, in this order."""
    versions: list[list[int]] = [[] for _ in range(len(graph.buffers))]
    for op in order:
        for value in graph.ops.writes[op]:
            buffer_writers = versions[graph.values.buffer[value]]
            # An op that writes a buffer through several values makes one version of it.
            if not buffer_writers or buffer_writers[-1] != op:
                buffer_writers.append(op)
    return versions


def _read_after_write(graph: Graph, chosen: Sequence[int], writer: Sequence[int]) -> list[list[int]]:
    successors: list[list[int]] = [[] for _ in range(len(graph.ops))]
    for op in chosen:
        for value in graph.ops.reads[op]:
            if writer[value] >= 0:
                successors[writer[value]].append(op)
    return successors


def _all_edges(graph: Graph, dataflow_order: Sequence[int], writer: Sequence[int]) -> list[list[int]]:
    """Read-after-write, write-after-write and write-after-read edges.

    ``dataflow_order``, legal for read after write alone, fixes the sequence of versions of each buffer.
    """
    successors = _read_after_write(graph, dataflow_order, writer)
    next_writer: dict[tuple[int, int], int] = {}
    for buffer, buffer_writers in enumerate(_versions(graph, dataflow_order)):
        for old, new in zip([-1, *buffer_writers], buffer_writers, strict=False):
            next_writer[buffer, old] = new
            if old >= 0:
                successors[old].append(new)
    for op in dataflow_order:
        for value in graph.ops.reads[op]:
            new = next_writer.get((graph.values.buffer[value], writer[value]), op)
            if new != op:
                successors[op].append(new)
    return successors


def _sort_topologically(graph: Graph, chosen: Sequence[int], successors: Sequence[Sequence[int]]) -> tuple[int, ...]:
    predecessor_count = [0] * len(graph.ops)
    for op in chosen:
        for successor in successors[op]:
            predecessor_count[successor] += 1
    ready = [op for op in sorted(chosen) if not predecessor_count[op]]
    order: list[int] = []
    while ready:
        op = heapq.heappop(ready)
        order.append(op)
        for successor in successors[op]:
            predecessor_count[successor] -= 1
            if not predecessor_count[successor]:
                heapq.heappush(ready, successor)
    if len(order) < len(chosen):
        _refuse_cycle(graph, [op for op in sorted(chosen) if predecessor_count[op]], successors)
    return tuple(order)


def _refuse_cycle(graph: Graph, stuck: Sequence[int], successors: Sequence[Sequence[int]]) -> None:
    """Raises with the ops of one cycle, found by walking back from the smallest op that waits."""
    waiting = set(stuck)
    predecessor: dict[int, int] = {}
    for op in stuck:
        for successor in successors[op]:
            if successor in waiting:
                predecessor.setdefault(successor, op)
    # Every stuck op waits for another stuck one, so that the walk back repeats an op and ends.
    path, op = [stuck[0]], predecessor[stuck[0]]
    while op not in path:
        path.append(op)
        op = predecessor[op]
    cycle = path[path.index(op) :][::-1]
    raise LivenessCycle(
        f"ops {', '.join(map(str, cycle[:8]))}{', …' if len(cycle) > 8 else ''} wait for each other",
        fix="break the cycle: an op needs what depends on it",
        ops=list(cycle[:64]),
        targets=[graph.ops.target[op] for op in cycle[:8]],
    )
