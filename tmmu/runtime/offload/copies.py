"""The copies of a plan's order: when they may begin, and at which position the ops wait for them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tmmu.ir.graph import HOST, Graph
from tmmu.ir.ids import OpId
from tmmu.ir.windows import windows, writers
from tmmu.runtime.device.interface import ByteRange

RangeOf = Callable[[int, int, int], ByteRange]
"""Where bytes ``[low, high)`` of a buffer lie: ``range_of(buffer, low, high)``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCopy:
    """A copy that may begin before position ``begin``, and that is waited for before position ``end``.

    ``op``: the position of the op that it stands for; ``contents``: the buffers that it reads and writes.
    """

    op: int
    begin: int
    end: int
    source: ByteRange
    target: ByteRange
    contents: tuple[int, int]
    to_host: bool


def host_copies(graph: Graph, order: Sequence[OpId], range_of: RangeOf) -> tuple[HostCopy, ...]:
    """Those of a sound plan's order, by the positions of their ops.

    A copy to the host may begin once its value is there, as its host bytes are its own; it is waited for at its op, as
    from then on the device's bytes may be others'. A copy back may begin at its op; its first reader waits for it, or
    the next op where nobody reads it.
    """
    on_host = [role == HOST for role in graph.buffers.role]
    place_of = {op: position for position, op in enumerate(order)}
    next_use, writer, buffer_of = _next_uses(graph, order), writers(graph), graph.values.buffer
    copies = []
    for position, op in enumerate(order):
        touched = (*graph.ops.reads[op], *graph.ops.writes[op])
        if not any(on_host[buffer_of[value]] for value in touched):
            continue
        assert graph.calls is not None  # a rewritten graph says its calls
        source, target = graph.calls.operands[op]
        to_host = on_host[buffer_of[target]]
        copies.append(
            HostCopy(
                op=position,
                begin=place_of[writer[source]] + 1 if to_host else position,
                end=position if to_host else next_use[position],
                source=range_of(buffer_of[source], *windows(graph)[source]),
                target=range_of(buffer_of[target], *windows(graph)[target]),
                contents=(buffer_of[source], buffer_of[target]),
                to_host=to_host,
            )
        )
    return tuple(copies)


def _next_uses(graph: Graph, order: Sequence[OpId]) -> list[int]:
    """By position, the first one after it that uses a buffer that its op writes.

    The very next one where none does: from there on the plan gives the buffer's bytes to others.
    """
    buffer_of, uses, next_uses = graph.values.buffer, dict[int, int](), [len(order)] * len(order)
    for position in range(len(order) - 1, -1, -1):
        op = order[position]
        next_uses[position] = min(
            (uses.get(buffer_of[value], position + 1) for value in graph.ops.writes[op]), default=position + 1
        )
        uses |= {buffer_of[value]: position for value in (*graph.ops.reads[op], *graph.ops.writes[op])}
    return next_uses
