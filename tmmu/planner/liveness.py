"""Liveness: the half-open range of positions at which each buffer must keep its bytes.

State: per buffer, the position of its first write and the position after its last use, filled in one pass over the
order; positions are never revisited, so that O(ops + reads + writes) bounds it. Afterwards ranges are only ever
extended, for three reasons: persistent roles live throughout; outputs that the order writes, to its last position;
saved buffers, to the end (mode ``forward``) or to the mirrored position of their op (mode ``backward`` of a graph
whose backward is not traced). Invariant: a buffer is not read before it is written, unless its role is persistent.
Windows of one buffer are one buffer: liveness is per storage, not per view. See docs/spec/liveness.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tmmu.errors import InvalidIrShapes
from tmmu.ir.graph import PERSISTENT_ROLES, UNPLACED_ROLES, Graph
from tmmu.planner.order import writers


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRanges:
    """Placed buffers in id order, each with its half-open span ``[birth, death)`` within ``[0, timeline)``.

    ``live_out``: the contents are needed after the last position, so that no op may overwrite them, the last included.
    """

    timeline: int
    id: tuple[int, ...]
    birth: tuple[int, ...]
    death: tuple[int, ...]
    live_out: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.id)


def analyze_liveness(graph: Graph, order: Sequence[int], *, mode: str, preset: str) -> LiveRanges:
    """The live range of every buffer that a plan places: ``UML_OS.Model.AnalyzeLiveness_v1``.

    A buffer lives from its first write to its last read or write; outputs that the order writes, to the last
    position; parameters, constants and state, from 0 to the end. In mode ``forward`` what an op saves lives to
    the end; in mode ``backward`` of a graph without ops of stage ``backward``, to the mirrored position of
    that op in a second half of the timeline. O(ops + reads + writes).
    """
    steps = len(order)
    mirrored = mode == "backward" and "backward" not in graph.ops.stage
    birth, death = _use_positions(graph, order)
    writer = writers(graph, order)
    outputs = {graph.values.buffer[value] for value in graph.outputs if writer[value] >= 0}
    saved = (
        _saved_buffers(graph, order, writer, remat=preset == "remat_enabled") if mirrored or mode == "forward" else {}
    )
    for buffer, step in saved.items():
        # The gradient of the op at ``step`` runs at 2 * steps - 1 - step; death is the position after it.
        death[buffer] = max(death[buffer], 2 * steps - step if mirrored else steps)  # mutation: mirrored death
    ids = _placed_buffers(graph, birth)
    persistent = [graph.buffers.role[buffer] in PERSISTENT_ROLES for buffer in ids]
    timeline = 2 * steps if mirrored else steps
    # Mirrored, a saved buffer dies at its gradient, before the timeline ends: it is not live-out.
    live_out = outputs if mirrored else outputs | saved.keys()
    return LiveRanges(
        timeline=timeline,
        id=ids,
        birth=tuple(0 if always else birth[b] for b, always in zip(ids, persistent, strict=True)),
        death=tuple(
            timeline if always else max(death[b], steps if b in outputs else 0)  # mutation: output death
            for b, always in zip(ids, persistent, strict=True)
        ),
        live_out=tuple(always or b in live_out for b, always in zip(ids, persistent, strict=True)),
    )


def _use_positions(graph: Graph, order: Sequence[int]) -> tuple[list[int], list[int]]:
    """Per buffer: position of the first write, or -1; position after the last read or write, or 0."""
    buffer_of, reads, writes = graph.values.buffer, graph.ops.reads, graph.ops.writes
    birth = [-1] * len(graph.buffers)
    death = [0] * len(graph.buffers)
    for step, op in enumerate(order):
        for value in reads[op]:
            buffer = buffer_of[value]
            death[buffer] = step + 1  # mutation: death after read
            if birth[buffer] < 0 and graph.buffers.role[buffer] not in PERSISTENT_ROLES:
                raise InvalidIrShapes(
                    f"op {op} reads value {value} of buffer {buffer}, which nothing has written",
                    fix="write it first, or give the buffer a persistent role",
                    op=op,
                    value=value,
                    buffer=buffer,
                )
        for value in writes[op]:
            buffer = buffer_of[value]
            death[buffer] = step + 1
            if birth[buffer] < 0:
                birth[buffer] = step
    return birth, death


def _saved_buffers(graph: Graph, order: Sequence[int], writer: Sequence[int], *, remat: bool) -> dict[int, int]:
    """Buffers saved for the gradient, each with the first position that saves it: mirrored, the last that needs it.

    ``remat`` leaves out values that are recomputed.
    """
    recompute, buffer = graph.ops.recompute, graph.values.buffer
    first: dict[int, int] = {}
    for step, op in enumerate(order):
        for value in graph.ops.saves[op]:
            if not (remat and writer[value] >= 0 and recompute[writer[value]]):
                first.setdefault(buffer[value], step)
    return first


def _placed_buffers(graph: Graph, birth: Sequence[int]) -> tuple[int, ...]:
    """Buffers that a plan places: persistent ones except inputs, and those on the device that the order writes."""
    return tuple(
        buffer
        for buffer, role in enumerate(graph.buffers.role)
        if role not in UNPLACED_ROLES and (role in PERSISTENT_ROLES or birth[buffer] >= 0)
    )
