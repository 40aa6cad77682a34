"""Liveness: from which position to which each buffer must keep its bytes."""

from collections.abc import Sequence
from dataclasses import dataclass

from tmmu.errors import InvalidIrShapes
from tmmu.ir.graph import PERSISTENT_ROLES, Graph
from tmmu.planner.order import writers


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRanges:
    """Every placed buffer by id, with its half-open span ``[birth, death)`` within ``[0, timeline)``."""

    timeline: int
    id: tuple[int, ...]
    birth: tuple[int, ...]
    death: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.id)


def analyze_liveness(graph: Graph, order: Sequence[int], *, mode: str, preset: str) -> LiveRanges:
    """The span of every buffer that a plan places: ``UML_OS.Model.AnalyzeLiveness_v1``.

    A buffer lives from its first write to its last read or write; outputs that the order writes, to the last
    position; parameters, constants and state, from 0 to the end. In mode ``forward`` what an op saves lives to
    the end; in mode ``backward`` of a graph without ops of stage ``backward``, to the mirrored position of
    that op in a second half of the timeline. O(ops + reads + writes).
    """
    steps = len(order)
    mirrored = mode == "backward" and "backward" not in graph.ops.stage
    birth, death = _touched(graph, order)
    writer = writers(graph, order)
    for value in graph.outputs:
        if writer[value] >= 0:
            death[graph.values.buffer[value]] = steps
    if mirrored or mode == "forward":
        for step, value in _saved(graph, order, writer, remat=preset == "remat_enabled"):
            buffer = graph.values.buffer[value]
            death[buffer] = max(death[buffer], 2 * steps - step if mirrored else steps)
    return _collect(graph, birth, death, timeline=2 * steps if mirrored else steps)


def _touched(graph: Graph, order: Sequence[int]) -> tuple[list[int], list[int]]:
    """Per buffer: position of the first write, or -1; position after the last read or write, or 0."""
    buffer, reads, writes = graph.values.buffer, graph.ops.reads, graph.ops.writes
    birth = [-1] * len(graph.buffers)
    death = [0] * len(graph.buffers)
    for step, op in enumerate(order):
        for value in reads[op]:
            where = buffer[value]
            death[where] = step + 1
            if birth[where] < 0 and graph.buffers.role[where] not in PERSISTENT_ROLES:
                raise InvalidIrShapes(
                    f"op {op} reads value {value} of buffer {where}, which nothing has written",
                    fix="write it first, or give the buffer a persistent role",
                    op=op,
                    value=value,
                    buffer=where,
                )
        for value in writes[op]:
            where = buffer[value]
            death[where] = step + 1
            if birth[where] < 0:
                birth[where] = step
    return birth, death


def _saved(graph: Graph, order: Sequence[int], writer: Sequence[int], *, remat: bool) -> list[tuple[int, int]]:
    """(position, value) of all that is retained for the gradient; ``remat`` leaves out what is recomputed."""
    recompute = graph.ops.recompute
    return [
        (step, value)
        for step, op in enumerate(order)
        for value in graph.ops.saves[op]
        if not (remat and writer[value] >= 0 and recompute[writer[value]])
    ]


def _collect(graph: Graph, birth: Sequence[int], death: Sequence[int], *, timeline: int) -> LiveRanges:
    roles = graph.buffers.role
    ids = [b for b, role in enumerate(roles) if role != "input" and (role in PERSISTENT_ROLES or birth[b] >= 0)]
    persistent = [roles[b] in PERSISTENT_ROLES for b in ids]
    return LiveRanges(
        timeline=timeline,
        id=tuple(ids),
        birth=tuple(0 if always else birth[b] for b, always in zip(ids, persistent, strict=True)),
        death=tuple(timeline if always else death[b] for b, always in zip(ids, persistent, strict=True)),
    )
