"""Liveness: from which position to which each buffer must keep its bytes."""

from collections.abc import Sequence
from dataclasses import dataclass

from tmmu.errors import InvalidIrShapes
from tmmu.ir.graph import PERSISTENT_ROLES, Graph
from tmmu.planner.order import writers


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRanges:
    """Every placed buffer by id, with its half-open span ``[birth, death)`` within ``[0, timeline)``.

    ``kept``: somebody needs its contents after the last position, so that even there nothing may overwrite it.
    """

    timeline: int
    id: tuple[int, ...]
    birth: tuple[int, ...]
    death: tuple[int, ...]
    kept: tuple[bool, ...]

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
    outputs = {graph.values.buffer[value] for value in graph.outputs if writer[value] >= 0}
    saved = _saved(graph, order, writer, remat=preset == "remat_enabled") if mirrored or mode == "forward" else {}
    for buffer, step in saved.items():
        death[buffer] = max(death[buffer], 2 * steps - step if mirrored else steps)
    ids = _placed(graph, birth)
    persistent = [graph.buffers.role[buffer] in PERSISTENT_ROLES for buffer in ids]
    timeline = 2 * steps if mirrored else steps
    kept = outputs if mirrored else outputs | saved.keys()
    return LiveRanges(
        timeline=timeline,
        id=ids,
        birth=tuple(0 if always else birth[b] for b, always in zip(ids, persistent, strict=True)),
        death=tuple(
            timeline if always else max(death[b], steps if b in outputs else 0)
            for b, always in zip(ids, persistent, strict=True)
        ),
        kept=tuple(always or b in kept for b, always in zip(ids, persistent, strict=True)),
    )


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


def _saved(graph: Graph, order: Sequence[int], writer: Sequence[int], *, remat: bool) -> dict[int, int]:
    """Buffers retained for the gradient, each with the first position that saves it, which is needed the longest.

    ``remat`` leaves out values that are recomputed.
    """
    recompute, buffer = graph.ops.recompute, graph.values.buffer
    first: dict[int, int] = {}
    for step, op in enumerate(order):
        for value in graph.ops.saves[op]:
            if not (remat and writer[value] >= 0 and recompute[writer[value]]):
                first.setdefault(buffer[value], step)
    return first


def _placed(graph: Graph, birth: Sequence[int]) -> tuple[int, ...]:
    """Buffers that a plan places: the persistent ones but the caller's, and those that the order writes."""
    return tuple(
        buffer
        for buffer, role in enumerate(graph.buffers.role)
        if role != "input" and (role in PERSISTENT_ROLES or birth[buffer] >= 0)
    )
