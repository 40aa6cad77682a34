"""Coalescing: results computed in the bytes of an argument that dies, so that the two are one item."""

from collections.abc import Sequence
from dataclasses import dataclass

from tmmu.ir.graph import Graph
from tmmu.planner.liveness import LiveRanges


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """What is placed as one: a buffer, or a chain of takeovers. Items are in the order of their first buffer's id.

    ``of`` has one entry per placed buffer (a row of the live ranges): its item.
    ``row`` is the row of an item's first buffer.
    """

    of: tuple[int, ...]
    row: tuple[int, ...]
    birth: tuple[int, ...]
    death: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.row)


def find_takeovers(
    graph: Graph, order: Sequence[int], ranges: LiveRanges, arena: Sequence[int], *, overwrite: bool
) -> tuple[int, ...]:
    """Per placed buffer, the row whose bytes it takes over, or its own row.

    ``arena`` is per row; -1 where nothing is ever reused. The written buffer is born at the op, the read one dies
    there, both are in one arena and of one size; the op touches the read buffer through that one window
    alone. Pairs are taken in order; each buffer takes over at most one, and is taken over by at most one.
    """
    takes_over = list(range(len(ranges)))
    if not overwrite:
        return tuple(takes_over)
    row_of = [-1] * len(graph.buffers)
    for row, buffer in enumerate(ranges.id):
        row_of[buffer] = row
    size = graph.buffers.bytes
    given = [False] * len(ranges)
    for step, op in enumerate(order):
        for written, read in graph.ops.overwrites[op]:
            new, old = row_of[graph.values.buffer[written]], row_of[graph.values.buffer[read]]
            if (
                min(new, old) >= 0
                and ranges.birth[new] == step
                and ranges.death[old] == step + 1
                and not ranges.kept[old]
                and arena[new] == arena[old] >= 0
                and size[ranges.id[new]] == size[ranges.id[old]]
                and takes_over[new] == new
                and not given[old]
                and _touches_once(graph, op, read)
            ):
                takes_over[new] = old
                given[old] = True
    return tuple(takes_over)


def _touches_once(graph: Graph, op: int, value: int) -> bool:
    """Whether the op sees the buffer of ``value`` through that window alone, and leaves it unwritten."""
    values = graph.values
    buffer = values.buffer[value]
    for other in graph.ops.reads[op]:
        if other != value and values.buffer[other] == buffer and _window(graph, other) != _window(graph, value):
            return False
    return all(values.buffer[other] != buffer for other in graph.ops.writes[op])


def _window(graph: Graph, value: int) -> tuple[int, tuple[int, ...], tuple[int, ...], str]:
    values = graph.values
    return values.offset[value], values.shape[value], values.stride[value], values.dtype[value]


def merge_items(ranges: LiveRanges, takes_over: Sequence[int]) -> Items:
    """Chains of takeovers as single items, from the first birth to the last death."""
    count = len(ranges)
    death = list(ranges.death)
    first = list(range(count))
    for row in sorted(range(count), key=lambda r: (ranges.birth[r], r)):
        if takes_over[row] != row:
            first[row] = first[takes_over[row]]
            death[first[row]] = max(death[first[row]], ranges.death[row])
    rows = [row for row in range(count) if first[row] == row]
    index = [0] * count
    for item, row in enumerate(rows):
        index[row] = item
    return Items(
        of=tuple(index[row] for row in first),
        row=tuple(rows),
        birth=tuple(ranges.birth[row] for row in rows),
        death=tuple(death[row] for row in rows),
    )
