"""Coalescing (in-place reuse): a result takes over the bytes of an argument that dies at the op that writes it.

State: ``takes_over``, a forest over placed buffers in which every buffer has at most one parent (the buffer that it
overwrites) and at most one child. Invariant: a child is born at the last position of its parent, so that spans along a
chain share the position of one op only, and one item from the first birth to the last death holds all of them.
One pass over the ops' declared ``overwrites`` pairs, each decided once: O(ops + pairs x reads). The greedy choice in
pair order is part of the plan format (docs/spec/liveness.md): it is not the maximum matching.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tmmu.ir.graph import Graph
from tmmu.planner.liveness import LiveRanges


@dataclass(frozen=True, slots=True, kw_only=True)
class CoalescedItems:
    """Units of placement: a buffer, or a chain of takeovers. Items are in the order of their first buffer's id.

    ``item_of_row``: per placed buffer (a row of the live ranges), its item. ``first_row``: per item, the row of its
    first buffer.
    """

    item_of_row: tuple[int, ...]
    first_row: tuple[int, ...]
    birth: tuple[int, ...]
    death: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.first_row)


def find_takeovers(
    graph: Graph, order: Sequence[int], ranges: LiveRanges, arena: Sequence[int], *, overwrite: bool
) -> tuple[int, ...]:
    """Per placed buffer, the row whose bytes it takes over, or its own row.

    ``arena`` is per row; -1 where nothing is ever reused. The written buffer is born at the op, the read one dies
    there and is not live-out, both are in one arena and of one size in bytes; the op reads the dying buffer through
    one window (offset, shape, stride, dtype) only.
    """
    takes_over = list(range(len(ranges)))
    if not overwrite:
        return tuple(takes_over)
    row_of = [-1] * len(graph.buffers)
    for row, buffer in enumerate(ranges.id):
        row_of[buffer] = row
    size = graph.buffers.bytes
    taken_over = [False] * len(ranges)
    for step, op in enumerate(order):
        for written, read in graph.ops.overwrites[op]:
            new, old = row_of[graph.values.buffer[written]], row_of[graph.values.buffer[read]]
            if (
                min(new, old) >= 0
                and ranges.birth[new] == step
                and ranges.death[old] == step + 1
                and not ranges.live_out[old]
                and arena[new] == arena[old] >= 0
                and size[ranges.id[new]] == size[ranges.id[old]]
                and takes_over[new] == new
                and not taken_over[old]
                and touches_once(graph, op, read)
            ):
                takes_over[new] = old
                taken_over[old] = True
    return tuple(takes_over)


def touches_once(graph: Graph, op: int, value: int) -> bool:
    """Whether every read of the buffer of ``value`` has that value's window, and the op does not write the buffer."""
    values = graph.values
    buffer = values.buffer[value]
    for read in graph.ops.reads[op]:
        if read != value and values.buffer[read] == buffer and _window(graph, read) != _window(graph, value):
            return False
    return all(values.buffer[written] != buffer for written in graph.ops.writes[op])


def _window(graph: Graph, value: int) -> tuple[int, tuple[int, ...], tuple[int, ...], str]:
    values = graph.values
    return values.offset[value], values.shape[value], values.stride[value], values.dtype[value]


def merge_items(ranges: LiveRanges, takes_over: Sequence[int]) -> CoalescedItems:
    """Chains of takeovers as single items, from the first birth to the last death."""
    count = len(ranges)
    death = list(ranges.death)
    first = list(range(count))
    # In birth order a parent comes before its child: its chain already has its first row.
    for row in sorted(range(count), key=lambda r: (ranges.birth[r], r)):
        if takes_over[row] != row:
            first[row] = first[takes_over[row]]
            death[first[row]] = max(death[first[row]], ranges.death[row])
    rows = [row for row in range(count) if first[row] == row]
    index = [0] * count
    for item, row in enumerate(rows):
        index[row] = item
    return CoalescedItems(
        item_of_row=tuple(index[row] for row in first),
        first_row=tuple(rows),
        birth=tuple(ranges.birth[row] for row in rows),
        death=tuple(death[row] for row in rows),
    )
