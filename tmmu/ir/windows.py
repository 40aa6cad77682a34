"""Windows: which bytes of its buffer a value covers, and which op writes it."""

from collections.abc import Sequence

from tmmu.ir.graph import DTYPE_BYTES, Graph
from tmmu.ir.ids import OpId, ValueId


def extent(shape: Sequence[int], stride: Sequence[int], item_bytes: int) -> int:
    """Bytes from the first element to the end of the last; 0 without elements. ``stride`` counts elements."""
    if 0 in shape:
        return 0
    last = sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    return (last + 1) * item_bytes


def windows(graph: Graph) -> tuple[tuple[int, int], ...]:
    """Per value, the half-open byte range ``[low, high)`` of its buffer that holds its elements.

    Worked out once for each graph, which never changes.
    """
    ranges: tuple[tuple[int, int], ...] | None = vars(graph).get("_windows")
    if ranges is None:
        values = graph.values
        forms = list(zip(values.shape, values.stride, values.dtype, strict=True))
        # A model has few forms of tensors and many values of each.
        extents = {form: extent(form[0], form[1], DTYPE_BYTES[form[2]]) for form in set(forms)}
        ranges = tuple((offset, offset + extents[form]) for offset, form in zip(values.offset, forms, strict=True))
        vars(graph)["_windows"] = ranges
    return ranges


def is_dense(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether the elements fill their extent, each byte once, in some order of the axes."""
    step = 1
    for axis_stride, n in sorted((s, n) for n, s in zip(shape, stride, strict=True) if n != 1):
        if axis_stride != step:
            return 0 in shape
        step *= n
    return True


def same_window(graph: Graph, first: ValueId, second: ValueId) -> bool:
    """Whether two values have one offset, shape, stride and dtype, each on its own buffer."""
    values = graph.values
    columns = (values.offset, values.shape, values.stride, values.dtype)
    return all(column[first] == column[second] for column in columns)


def writers(graph: Graph) -> list[OpId]:
    """Per value, the op that writes it; -1 where it is defined from the start."""
    writer = [OpId(-1)] * len(graph.values)
    for op, written in zip(graph.ops.ids, graph.ops.writes, strict=True):
        for value in written:
            writer[value] = op
    return writer
