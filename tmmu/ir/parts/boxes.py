"""Boxes: a range of indices along each axis of a window, and the window that is left of it."""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from tmmu.ir.graph import DTYPE_BYTES, Graph
from tmmu.ir.ids import ValueId
from tmmu.ir.windows import extent, is_dense

Box: TypeAlias = tuple[tuple[int, int], ...]
"""Per axis, half-open."""


class TensorWindow(NamedTuple):
    """``offset`` in bytes from the start of a buffer; ``shape`` and ``stride`` in elements."""

    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str

    @property
    def span(self) -> tuple[int, int]:
        """The bytes from the first element to the end of the last."""
        return self.offset, self.offset + extent(self.shape, self.stride, DTYPE_BYTES[self.dtype])

    @property
    def is_dense(self) -> bool:
        """Whether its elements fill its span."""
        return is_dense(self.shape, self.stride)

    def has_form_of(self, other: "TensorWindow") -> bool:
        """Whether shape, strides and dtype are the same."""
        return self[1:] == other[1:]

    def narrowed(self, box: Box) -> "TensorWindow":
        """What lies in the box, with the strides of the whole."""
        step = DTYPE_BYTES[self.dtype]
        skipped = sum(low * stride for (low, _), stride in zip(box, self.stride, strict=True))
        return self._replace(offset=self.offset + skipped * step, shape=tuple(high - low for low, high in box))


def window_of(graph: Graph, value: ValueId) -> TensorWindow:
    """The window of a value."""
    values = graph.values
    return TensorWindow(values.offset[value], values.shape[value], values.stride[value], values.dtype[value])


def whole(shape: Sequence[int]) -> Box:
    """Every index."""
    return tuple((0, n) for n in shape)


def box_of(part: Sequence[int], shape: Sequence[int]) -> Box | None:
    """The box that ``(axis, low, high)`` triples leave of a shape; ``None`` where they are none, or leave nothing."""
    if len(part) % 3 or not part:
        return None
    triples = [(part[index], part[index + 1], part[index + 2]) for index in range(0, len(part), 3)]
    axes = [axis for axis, _, _ in triples]
    if axes != sorted(set(axes)) or not 0 <= axes[0] <= axes[-1] < len(shape):
        return None
    box = list(whole(shape))
    for axis, low, high in triples:
        if not 0 <= low < high <= shape[axis]:
            return None
        box[axis] = (low, high)
    return tuple(box)


def part_of(box: Box, shape: Sequence[int]) -> tuple[int, ...]:
    """The triples of a box: axes that are whole are left out, but for the first where all are."""
    cut = [axis for axis, n in enumerate(shape) if box[axis] != (0, n)] or [0]
    return tuple(number for axis in cut for number in (axis, *box[axis]))
