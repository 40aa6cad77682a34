"""Bytes that an op touches: what it reads and what it writes, each byte once.

A lookup reads as many bytes of a table as it writes; a write into a part of a state touches that part alone, twice
where it adds. Windows that are read later, and that an op of a graph lists as written, count no second time.
"""

from collections import defaultdict
from collections.abc import Sequence, Set
from math import prod
from typing import Final

from tmmu.ir.graph import DTYPE_BYTES, Graph
from tmmu.ir.windows import windows
from tmmu.passes.semantics import families
from tmmu.passes.semantics.families import base_name, family_of

_LOOKUPS: Final = frozenset(
    {"embedding", "_embedding_bag", "index", "index_select", "gather", "take", "take_along_dim"}
)
_WRITES_PART: Final = frozenset(
    {"index_put_", "index_copy_", "index_add_", "scatter_", "scatter_add_", "masked_scatter_"}
)
_OVERWRITES: Final = frozenset({"copy_", "fill_", "zero_"})


def op_bytes(graph: Graph, op: int) -> int:
    """Bytes read and written by an op."""
    buffer, ops = graph.values.buffer, graph.ops
    written = {buffer[value] for value in ops.writes[op]}
    changed = {buffer[value] for value in ops.reads[op]} & written
    others = [value for value in ops.reads[op] if buffer[value] not in written]
    fresh = _touched(graph, [value for value in ops.writes[op] if buffer[value] not in changed])
    return fresh + _read_bytes(graph, op, others, fresh) + _part_bytes(graph, op, changed, others)


def value_bytes(graph: Graph, value: int) -> int:
    """Bytes of a value's elements, those that stand still along an axis once."""
    shape, stride = graph.values.shape[value], graph.values.stride[value]
    elements = prod(n for n, step in zip(shape, stride, strict=True) if step != 0 or n == 0)
    low, high = windows(graph)[value]
    return min(elements * DTYPE_BYTES[graph.values.dtype[value]], high - low)


def _read_bytes(graph: Graph, op: int, reads: Sequence[int], written: int) -> int:
    """What is read; of a table that is looked up, no more than is written."""
    if base_name(graph.ops.target[op]) in _LOOKUPS and reads:
        return min(written, value_bytes(graph, reads[0])) + _touched(graph, reads[1:])
    is_filled = family_of(graph.ops.target[op]) == families.CREATION
    return 0 if is_filled else _touched(graph, reads)


def _part_bytes(graph: Graph, op: int, changed: Set[int], others: Sequence[int]) -> int:
    """What an op touches of the buffers that it changes: the window that it is called on is the first it writes."""
    name = base_name(graph.ops.target[op])
    first: dict[int, int] = {}
    for value in graph.ops.writes[op]:
        if graph.values.buffer[value] in changed:
            first.setdefault(graph.values.buffer[value], value)
    part = sum(value_bytes(graph, value) for value in first.values())
    if name in _WRITES_PART:
        source = max((value_bytes(graph, value) for value in others), default=0)
        return min(part, source) * (2 if "add" in name else 1)
    return part if name in _OVERWRITES else 2 * part


def _touched(graph: Graph, values: Sequence[int]) -> int:
    """Bytes of some values, by buffer: of windows that overlap, the union of their extents."""
    by_buffer: dict[int, list[int]] = defaultdict(list)
    for value in dict.fromkeys(values):
        by_buffer[graph.values.buffer[value]].append(value)
    return sum(_union(graph, group) for group in by_buffer.values())


def _union(graph: Graph, values: Sequence[int]) -> int:
    if len(values) == 1:
        return value_bytes(graph, values[0])
    ranges = windows(graph)
    total = end = 0
    for low, high in sorted(ranges[value] for value in values):
        total += max(0, high - max(low, end))
        end = max(end, high)
    return min(total, sum(value_bytes(graph, value) for value in values))
