"""The call of an op on a box of its first result: which boxes of its operands it takes, and which arguments change.

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
    """The call on ``box`` of its first result; ``shapes`` of its tensor arguments. ``None`` where it cannot be cut."""
    rule = _ALL_CUTS.get(text.operator)
    try:
        cut = None if rule is None else rule(text, shapes, box)
    except (IndexError, ValueError):  # arguments or shapes that the operator does not take: a graph from a file
        return None
    # So too for shapes that do not belong together, of which the operator would take what is not there.
    return cut if cut is not None and all(map(_is_in, cut.boxes, shapes)) else None


def _is_in(box: Box, shape: Sequence[int]) -> bool:
    return len(box) == len(shape) and all(0 <= low <= high <= n for (low, high), n in zip(box, shape, strict=True))


def cut_beside(text: CallText, shapes: Shapes, box: Box) -> tuple[Box, ...]:
    """Of each result after the first, of these shapes, the box that comes with ``box`` of the first."""
    rule = _BESIDE.get(text.operator)
    if shapes and rule is None:
        raise InternalError(f"{text.operator} has several results")
    return tuple(rule(box, shape) for shape in shapes) if rule else ()


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


def _by_item(text: CallText, shapes: Shapes, box: Box) -> PartialCallText | None:
    """Of the first operand the items of the first axis, all of the others."""
    first, *others = shapes
    return PartialCallText(text, (_of_items(box, first), *map(whole, others)))


def _of_items(box: Box, shape: Sequence[int]) -> Box:
    return (*box[:1], *whole(shape[1:]))


def _by_image(text: CallText, shapes: Shapes, box: Box) -> PartialCallText | None:
    return _by_item(text, shapes, box) if len(shapes[0]) == 4 else None


def _batch_norm(text: CallText, shapes: Shapes, box: Box) -> PartialCallText | None:
    """Where it trains, a batch has one norm."""
    trains = text.operator == "aten.native_batch_norm.default" and text.arguments[5] is not False
    return None if trains else _by_item(text, shapes, box)


def _group_norm(text: CallText, shapes: Shapes, box: Box) -> PartialCallText | None:
    arguments = list(text.arguments)
    arguments[3] = box[0][1] - box[0][0]
    return _by_item(replace(text, arguments=tuple(arguments)), shapes, box)


def _layer_norm(text: CallText, shapes: Shapes, box: Box) -> PartialCallText | None:
    axes = len(text.arguments[1]) - 1 if isinstance(text.arguments[1], list) else len(box)
    if box[-axes:] != whole(shapes[0])[-axes:]:
        return None
    return PartialCallText(text, (box, *map(whole, shapes[1:])))


def _mean(text: CallText, shapes: Shapes, box: Box) -> PartialCallText | None:
    axes = text.arguments[1]
    is_of_items = (
        not isinstance(axes, list) or len(axes) == 1 or any(not _integer(n) % len(shapes[0]) for n in axes[1:])
    )
    return None if is_of_items else _by_item(text, shapes, box)


def _cat(text: CallText, shapes: Shapes, box: Box) -> PartialCallText | None:
    axis = text.arguments[1]
    if not isinstance(axis, int) or not axis % len(box) or any(len(shape) != len(box) for shape in shapes):
        return None
    return PartialCallText(text, tuple(_of_items(box, shape) for shape in shapes))


def _embedding(text: CallText, shapes: Shapes, box: Box) -> PartialCallText | None:
    return PartialCallText(text, (whole(shapes[0]), box[:-1])) if box[-1] == (0, shapes[0][1]) else None


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
            *("aten.mul.Scalar", "aten.div.Scalar", "aten.relu.default", "aten.gelu.default", "aten.silu.default"),
            *("aten.sigmoid.default", "aten._softmax.default", "aten.relu_.default", "aten.add_.Tensor"),
        ],
        _elementwise,
    ),
    "aten.mm.default": _product,
    "aten.addmm.default": _product,
    "aten.nll_loss_backward.default": _loss_gradient,
    "aten.slice_backward.default": _slice_gradient,
    "aten.embedding.default": _embedding,
    "aten.native_layer_norm.default": _layer_norm,
}
_ITEM_CUTS: Final[Mapping[str, _Cut]] = {
    "aten.cat.default": _cat,
    "aten.max_pool2d_with_indices.default": _by_image,
    "aten.upsample_nearest2d.default": _by_image,
    "aten.avg_pool2d.default": _by_image,
    "aten._adaptive_avg_pool2d.default": _by_image,
    "aten.convolution.default": _by_item,
    "aten.mean.dim": _mean,
    "aten.native_group_norm.default": _group_norm,
    "aten.native_batch_norm.default": _batch_norm,
    "aten._native_batch_norm_legit_no_training.default": _batch_norm,
}
BY_ITEM: Final = frozenset(_ITEM_CUTS)
"""Operators that are cut along the first axis of their result alone."""
IN_PLACE: Final = frozenset({"aten.relu_.default", "aten.add_.Tensor"})
"""Operators of one result, which is their first operand, changed."""
_ALL_CUTS: Final = {**_CUTS, **_ITEM_CUTS}


def _means_of_rows(box: Box, shape: Sequence[int]) -> Box:
    return tuple((0, 1) if n == 1 else each for each, n in zip(box, shape, strict=True))


_BESIDE: Final[Mapping[str, Callable[[Box, Sequence[int]], Box]]] = {
    "aten.native_layer_norm.default": _means_of_rows,
    "aten.native_group_norm.default": _of_items,
    "aten.max_pool2d_with_indices.default": _of_items,
    "aten.native_batch_norm.default": lambda _, shape: whole(shape),
    "aten._native_batch_norm_legit_no_training.default": lambda _, shape: whole(shape),
}
"""Operators of several results."""
