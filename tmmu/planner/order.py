"""The order: which ops a mode runs, and one after another so that each finds what it needs."""

import heapq
from collections.abc import Sequence

from tmmu.errors import InvalidConfig, InvalidIrShapes, LivenessCycle
from tmmu.ir.graph import Graph
from tmmu.ir.random_state import displaced_ops


def derive_order(graph: Graph, mode: str) -> tuple[int, ...]:
    """The ops of ``mode``, by id where that is legal, else topologically with the smallest id first.

    An op comes after the writer of all that it reads (read after write), after every reader of what it
    replaces (write after read), and after the op that wrote the same buffer before (write after write).
    What takes or sets the random state stays between smaller and larger ids. ``LivenessCycle`` when there is no such
    order. O(ops + edges), with a logarithm when ids are no order.
    """
    chosen = select_ops(graph, mode)
    writer = writers(graph, chosen)
    _demand_closed(graph, chosen, writer)
    if _finds_its_values(graph, chosen, writer):
        return chosen
    first = _topological(graph, chosen, _read_after_write(graph, chosen, writer))
    order = _topological(graph, chosen, _all_edges(graph, first, writer))
    _demand_in_place(graph, order)
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
    if not same_contents or not _finds_its_values(graph, order, writers(graph, legal)):
        raise InvalidConfig("the order runs an op before what it needs", fix="give a topological order, or none")
    if list(displaced_ops(graph, order)):
        raise InvalidConfig("the order moves an op that takes or sets the random state", fix="leave it where it is")
    return tuple(order)


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


def _demand_in_place(graph: Graph, order: Sequence[int]) -> None:
    for op in displaced_ops(graph, order):
        raise LivenessCycle(
            f"op {op} takes or sets the random state, and cannot run between the smaller and the larger ids",
            fix="number the ops in an order in which they can run",
            ops=[op],
            targets=[graph.ops.target[op]],
        )


def _demand_closed(graph: Graph, chosen: Sequence[int], writer: Sequence[int]) -> None:
    anywhere = writers(graph, range(len(graph.ops)))
    for op in chosen:
        for value in graph.ops.reads[op]:
            if writer[value] != anywhere[value]:
                raise InvalidIrShapes(
                    f"op {op} of stage {graph.ops.stage[op]} reads value {value} of a later stage",
                    fix="give the op the stage of what it reads",
                    op=op,
                    value=value,
                )


def _finds_its_values(graph: Graph, order: Sequence[int], writer: Sequence[int]) -> bool:
    """Whether each read finds its buffer as the writer of that value left it."""
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
            made = versions[graph.values.buffer[value]]
            if not made or made[-1] != op:
                made.append(op)
    return versions


def _read_after_write(graph: Graph, chosen: Sequence[int], writer: Sequence[int]) -> list[list[int]]:
    after: list[list[int]] = [[] for _ in range(len(graph.ops))]
    for op in chosen:
        for value in graph.ops.reads[op]:
            if writer[value] >= 0:
                after[writer[value]].append(op)
    return after


def _all_edges(graph: Graph, first: Sequence[int], writer: Sequence[int]) -> list[list[int]]:
    """Every edge; ``first``, an order by read after write alone, says which version of a buffer is which."""
    after = _read_after_write(graph, first, writer)
    following: dict[tuple[int, int], int] = {}
    for buffer, made in enumerate(_versions(graph, first)):
        for old, new in zip([-1, *made], made, strict=False):
            following[buffer, old] = new
            if old >= 0:
                after[old].append(new)
    for op in first:
        for value in graph.ops.reads[op]:
            new = following.get((graph.values.buffer[value], writer[value]), op)
            if new != op:
                after[op].append(new)
    return after


def _topological(graph: Graph, chosen: Sequence[int], after: Sequence[Sequence[int]]) -> tuple[int, ...]:
    waits = [0] * len(graph.ops)
    for op in chosen:
        for later in after[op]:
            waits[later] += 1
    ready = [op for op in sorted(chosen) if not waits[op]]
    order: list[int] = []
    while ready:
        op = heapq.heappop(ready)
        order.append(op)
        for later in after[op]:
            waits[later] -= 1
            if not waits[later]:
                heapq.heappush(ready, later)
    if len(order) < len(chosen):
        _refuse_cycle(graph, [op for op in sorted(chosen) if waits[op]], after)
    return tuple(order)


def _refuse_cycle(graph: Graph, stuck: Sequence[int], after: Sequence[Sequence[int]]) -> None:
    """Raises with the ops of one cycle, found by walking back from the smallest op that waits."""
    waiting = set(stuck)
    before: dict[int, int] = {}
    for op in stuck:
        for later in after[op]:
            if later in waiting:
                before.setdefault(later, op)
    path, op = [stuck[0]], before[stuck[0]]
    while op not in path:
        path.append(op)
        op = before[op]
    cycle = path[path.index(op) :][::-1]
    raise LivenessCycle(
        f"ops {', '.join(map(str, cycle[:8]))}{', …' if len(cycle) > 8 else ''} wait for each other",
        fix="break the cycle: an op needs what depends on it",
        ops=list(cycle[:64]),
        targets=[graph.ops.target[op] for op in cycle[:8]],
    )
