"""Trips: from which reader to which a value of a step can be in host memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tmmu.ir.graph import PERSISTENT_ROLES, Graph
from tmmu.ir.ids import BufferId, OpId, ValueId
from tmmu.ir.rewrite import RERUN, SAME, TWIN, Rewrite
from tmmu.ir.windows import is_dense, windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Trip:
    """``value`` of the base, which ``origin`` makes; it goes after row ``last`` and is back before row ``first``.

    ``writer``: the row that makes it, after which its copy may begin; ``size``: bytes of its buffer.
    """

    buffer: BufferId
    value: ValueId
    origin: OpId
    writer: int
    last: int
    first: int
    size: int


def trips(base: Graph, rewrite: Rewrite, graph: Graph) -> list[Trip]:
    """Those of ``graph``, which the rewrite makes of the base: each gap between readers of a buffer.

    Of buffers that one op of the base makes, whole, and that one row alone makes: what is changed in place, made again
    or made in parts stays. Outputs stay too. O(size of the graph).
    """
    makers, wholes = _makers(base), dict[BufferId, ValueId]()
    for op in base.ops.ids:
        for value in base.ops.writes[op]:
            buffer = base.values.buffer[value]
            if _is_whole(base, value):
                wholes.setdefault(buffer, value)
    again = {rewrite.origin[row] for row, kind in enumerate(rewrite.kind) if kind in (RERUN, TWIN)}
    outputs = {graph.values.buffer[value] for value in graph.outputs}
    makers_now, uses = _makers(graph), _uses(graph)
    gaps = []
    for buffer in base.buffers.ids:
        rows, role = makers_now.get(buffer, ()), graph.buffers.role[buffer]
        origins = makers.get(buffer, ())
        if len(rows) != 1 or len(origins) != 1 or role in PERSISTENT_ROLES or buffer not in wholes:
            continue
        row, origin = rows[0], origins[0]
        if rewrite.kind[row] != SAME or origin in again or buffer in outputs or not graph.buffers.bytes[buffer]:
            continue
        gaps += [
            Trip(
                buffer=buffer,
                value=wholes[buffer],
                origin=OpId(origin),
                writer=row,
                last=last,
                first=first,
                size=graph.buffers.bytes[buffer],
            )
            for last, first in pairwise(uses[buffer])
            if first - last > 1
        ]
    return gaps


def _is_whole(graph: Graph, value: ValueId) -> bool:
    values = graph.values
    low, high = windows(graph)[value]
    is_all = (low, high) == (0, graph.buffers.bytes[values.buffer[value]])
    return is_all and is_dense(values.shape[value], values.stride[value])


def _makers(graph: Graph) -> dict[BufferId, Sequence[int]]:
    """By buffer, the ops that write it, each once."""
    ops_of: dict[BufferId, dict[int, None]] = {}
    for op in graph.ops.ids:
        for value in graph.ops.writes[op]:
            ops_of.setdefault(graph.values.buffer[value], {})[op] = None
    return {buffer: tuple(ops) for buffer, ops in ops_of.items()}


def _uses(graph: Graph) -> dict[BufferId, list[int]]:
    """By buffer, the ops that read or write it, in order."""
    rows_of: dict[BufferId, list[int]] = {}
    for op in graph.ops.ids:
        touched = dict.fromkeys(graph.values.buffer[value] for value in (*graph.ops.reads[op], *graph.ops.writes[op]))
        for buffer in touched:
            rows_of.setdefault(buffer, []).append(int(op))
    return rows_of
