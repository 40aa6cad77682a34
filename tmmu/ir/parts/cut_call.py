"""The call of an op on a box of its result: which boxes of its operands it takes, and which arguments change.

Rebuilding alone uses this; the judge of rewrites has a table of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from tmmu.errors import InternalError
from tmmu.ir.call_text import DEFAULT, LIST, TENSOR, Argument, CallText
from tmmu.ir.parts.boxes import Box, whole

Shapes: TypeAlias = Sequence[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class PartialCallText:
    """A call, and the box of each of its tensor arguments."""

    text: CallText
    boxes: tuple[Box, ...]


def cut_call(text: CallText, shapes: Shapes, box: Box) -> PartialCallText | None:
    """The call on ``box`` of its only result; ``shapes`` of its tensor arguments. ``None`` where it cannot be cut."""
    cut = _CUTS.get(text.operator)
    return None if cut is None else cut(text, shapes, box)


def cut_sum(text: CallText, shapes: Shapes, low: int, high: int) -> PartialCallText:
    """A product over ``[low, high)`` of the axis that it sums over: the first as it is, a later one added in place."""
    if text.operator != "aten.mm.default":
        raise InternalError(f"{text.operator} is no sum")
    rows, columns = shapes[0][0], shapes[1][1]
    boxes = (((0, rows), (low, high)), ((low, high), (0, columns)))
    if low == 0:
        return PartialCallText(text, boxes)
    arguments: tuple[Argument, ...] = ([TENSOR, 0], *text.arguments, [DEFAULT], [DEFAULT])
    added = replace(text, operator="aten.addmm_.default", arguments=arguments)
    return PartialCallText(added, (whole((rows, columns)), *boxes))


def _aligned(shape: Sequence[int], box: Box) -> Box:
    """The box of an operand that is broadcast to the result."""
    axes = box[len(box) - len(shape) :]
    return tuple((0, 1) if n == 1 else axis for n, axis in zip(shape, axes, strict=True))


def _elementwise(text: CallText, shapes: Shapes, box: Box) -> PartialCallText:
    return PartialCallText(text, tuple(_aligned(shape, box) for shape in shapes))


def _product(text: CallText, shapes: Shapes, box: Box) -> PartialCallText:
    *bias, first, second = shapes
    factors = ((box[0], (0, first[1])), ((0, second[0]), box[1]))
    return PartialCallText(text, (*(_aligned(shape, box) for shape in bias), *factors))


def _loss_gradient(text: CallText, shapes: Shapes, box: Box) -> PartialCallText:
    gradient, _, _, *rest = shapes
    return PartialCallText(text, (whole(gradient), box, box[:1], *map(whole, rest)))


def _slice_gradient(text: CallText, shapes: Shapes, box: Box) -> PartialCallText | None:
    """Zeros but for the slice, whose place counts from the start of the box."""
    gradient, sizes, axis, start, _, step = text.arguments
    axis = _integer(axis) % len(box)
    size = _integer(sizes[1 + axis] if isinstance(sizes, list) else sizes)
    begin = min(max(_integer(start) + (size if _integer(start) < 0 else 0), 0), size)
    low, high = box[axis]
    first, last = max(low - begin, 0), min(high - begin, shapes[0][axis])
    if step != 1 or first >= last:
        return None
    place = (first + begin - low, last + begin - low)
    lengths: list[Argument] = [LIST, *(end - begin for begin, end in box)]
    arguments = (gradient, lengths, axis, *place, step)
    taken = tuple((first, last) if index == axis else each for index, each in enumerate(box))
    return PartialCallText(replace(text, arguments=arguments), (taken,))


def _integer(argument: Argument) -> int:
    if not isinstance(argument, int):
        raise InternalError(f"{argument!r:.40} is no integer")
    return argument


_Cut: TypeAlias = Callable[[CallText, Shapes, Box], PartialCallText | None]
_CUTS: Final[Mapping[str, _Cut]] = {
    **dict.fromkeys(
        [
            *("aten.clone.default", "aten._to_copy.default", "aten._log_softmax.default"),
            *("aten._log_softmax_backward_data.default", "aten.add.Tensor", "aten.sub.Tensor"),
            *("aten.mul.Tensor", "aten.div.Tensor", "aten.tanh.default", "aten.tanh_backward.default"),
        ],
        _elementwise,
    ),
    "aten.mm.default": _product,
    "aten.addmm.default": _product,
    "aten.nll_loss_backward.default": _loss_gradient,
    "aten.slice_backward.default": _slice_gradient,
}
