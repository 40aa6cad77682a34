"""Along which axes an op may be cut: one table, without torch. What has no row is run whole.

A row says, of a box of the first result, which boxes of its operands an op takes for it, how its other arguments
change, and which boxes of its other results it makes; then each element is computed from the same numbers by the same
operations. ``EXACT`` rows have the bits of the whole however they are cut. Those of ``TRIED`` do where the kernels do
not add in another order for another size, nor compute another approximation where vectors end: parts of them are tried
against the whole on each device (``runtime/steps/part_trial.py``). ``SUMS`` are only near: sums over ranges, added up.
Rows are tried against torch by ``tests/unit/judge/rewrite/test_cuts.py``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from tmmu.ir.call_text import DEFAULT, LIST, TENSOR, Argument, CallText
from tmmu.ir.parts.boxes import Box, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedCut:
    """The call of a part, and of each tensor argument the box that it takes.

    ``others``: the box of another result, by its shape; without it the op has one result.
    """

    text: CallText
    boxes: tuple[Box, ...]
    others: "Callable[[tuple[int, ...]], Box] | None" = None


Shapes: TypeAlias = Sequence[tuple[int, ...]]
Cut: TypeAlias = ExpectedCut | str
CutRule: TypeAlias = Callable[[CallText, Shapes, Box], Cut]


def _of_each_element(text: CallText, shapes: Shapes, box: Box) -> Cut:
    """Element by element, operands broadcast as torch does."""
    return ExpectedCut(text=text, boxes=tuple(_broadcast(shape, box) for shape in shapes))


def _broadcast(shape: Sequence[int], box: Box) -> Box:
    axes = box[len(box) - len(shape) :]
    return tuple((0, 1) if n == 1 else axis for n, axis in zip(shape, axes, strict=True))


def _scaled_sum(text: CallText, shapes: Shapes, box: Box) -> Cut:
    """Element by element; a factor of the second term may be contracted with the sum, where vectors end or not."""
    return _of_each_element(text, shapes, box) if text.arguments[2] in ([DEFAULT], 1) else "has a factor"


def _of_rows(place: int) -> CutRule:
    """Row by row, along the last axis, which the argument at this place names: kernels take rows by themselves there.

    Along another axis they take vectors of rows, and what is left of one otherwise.
    """

    def rule(text: CallText, shapes: Shapes, box: Box) -> Cut:
        axis, shape = text.arguments[place], shapes[0]
        if axis not in (-1, len(shape) - 1) or box[-1] != (0, shape[-1]):
            return "is cut along the axis that it works along, or works along another one than the last"
        return ExpectedCut(text=text, boxes=(box,) * len(shapes))

    return rule


def _product(text: CallText, shapes: Shapes, box: Box) -> Cut:
    """Rows of the result are of rows of the first factor, its columns of columns of the second; a term is broadcast."""
    (rows, columns), (first, second) = box, shapes[-2:]
    terms = tuple(_broadcast(shape, box) for shape in shapes[:-2])
    return ExpectedCut(text=text, boxes=(*terms, (rows, (0, first[1])), ((0, second[0]), columns)))


def _class_gradient(text: CallText, shapes: Shapes, box: Box) -> Cut:
    """Rows of a loss by class, without weights, that is a mean or a sum: one gradient for all rows."""
    gradient, numbers, total = shapes[0], shapes[1], shapes[-1]
    is_reduced = text.arguments[4] in (1, 2) and gradient == ()
    if text.arguments[3] != [] or not is_reduced or len(numbers) != 2 or box[1] != (0, numbers[1]):
        return "is no gradient of a loss that rows have by themselves"
    return ExpectedCut(text=text, boxes=(whole(gradient), box, (box[0],), whole(total)))


def _slice_gradient(text: CallText, shapes: Shapes, box: Box) -> Cut:
    """The slice's elements that lie in the box, at their place in it, and zeros."""
    gradient, sizes, *rest = text.arguments
    lengths, numbers = _integers(sizes[1:] if isinstance(sizes, list) else []), _integers(rest)
    if len(lengths) != len(box) or len(numbers) != 4 or numbers[3] != 1 or not -len(box) <= numbers[0] < len(box):
        return "has a slice that is not known"
    axis = numbers[0] % len(box)
    begin = sorted((0, numbers[1] + lengths[axis] * (numbers[1] < 0), lengths[axis]))[1]
    low, high = box[axis]
    first, last = max(low, begin), min(high, begin + shapes[0][axis])
    if first >= last:
        return "has no element of the slice"
    new_sizes: list[Argument] = [LIST, *(after - before for before, after in box)]
    taken = tuple((first - begin, last - begin) if index == axis else each for index, each in enumerate(box))
    arguments = (gradient, new_sizes, axis, first - low, last - low, 1)
    return ExpectedCut(text=replace(text, arguments=arguments), boxes=(taken,))


def _integers(arguments: Sequence[Argument]) -> list[int]:
    return [argument for argument in arguments if isinstance(argument, int)]


def _items(text: CallText, shapes: Shapes, box: Box) -> Cut:
    """Item by item of the first axis of the first operand; all others are of every item."""
    first, *others = shapes
    if len(first) < 2 or not 0 <= box[0][0] < box[0][1] <= first[0]:
        return "has no such items"
    boxes = ((box[0], *whole(first[1:])), *map(whole, others))
    return ExpectedCut(text=text, boxes=boxes, others=lambda shape: (box[0], *whole(shape[1:])))


def _images(text: CallText, shapes: Shapes, box: Box) -> Cut:
    """Images of a batch; one that stands alone has no axis for it."""
    return _items(text, shapes, box) if len(shapes[0]) == 4 else "has no batch of images"


def _normalized_images(text: CallText, shapes: Shapes, box: Box) -> Cut:
    """A batch norm by numbers that are given, which makes none."""
    is_given = text.operator != "aten.native_batch_norm.default" or text.arguments[5] is False
    cut = _items(text, shapes, box) if is_given and len(shapes) >= 3 else "norms items by each other"
    return cut if isinstance(cut, str) else replace(cut, others=whole)


def _normalized_groups(text: CallText, shapes: Shapes, box: Box) -> Cut:
    """A norm of groups of an item's channels; the fourth argument says how many items there are."""
    if text.arguments[3] != shapes[0][0]:
        return "has another number of items"
    count = box[0][1] - box[0][0]
    return _items(replace(text, arguments=(*text.arguments[:3], count, *text.arguments[4:])), shapes, box)


def _normalized_rows(text: CallText, shapes: Shapes, box: Box) -> Cut:
    """A norm over the last axes, which are whole; means and deviations have one number in their place."""
    sizes = text.arguments[1]
    axes = len(sizes) - 1 if isinstance(sizes, list) else 0
    lead, ends = len(box) - axes, box[len(box) - axes :]
    if axes < 1 or ends != whole(shapes[0][lead:]):
        return "is cut along an axis that it norms"
    ones = ((0, 1),) * axes
    return ExpectedCut(text=text, boxes=(box, *map(whole, shapes[1:])), others=lambda _: (*box[:lead], *ones))


def _mean_of_items(text: CallText, shapes: Shapes, box: Box) -> Cut:
    """Means over other axes than the first."""
    axes, rank = text.arguments[1], len(shapes[0])
    numbers = _integers(axes[1:]) if isinstance(axes, list) else []
    return _items(text, shapes, box) if numbers and all(n % rank for n in numbers) else "is a mean over items"


def _joined_items(text: CallText, shapes: Shapes, box: Box) -> Cut:
    """Tensors that are joined along another axis than the first."""
    axis = text.arguments[1]
    if not isinstance(axis, int) or len({(shape[0], len(shape)) for shape in shapes}) > 1 or not axis % len(shapes[0]):
        return "joins items"
    return ExpectedCut(text=text, boxes=tuple((box[0], *whole(shape[1:])) for shape in shapes))


def _looked_up(text: CallText, shapes: Shapes, box: Box) -> Cut:
    """Rows of a table by index: those that lie where their indices do."""
    table, _ = shapes
    whole_rows = box[-1] == (0, table[1])
    return ExpectedCut(text=text, boxes=(whole(table), box[:-1])) if whole_rows else "is cut within rows"


_COPIES_AND_ROUNDED: Final = (
    *("clone.default", "_to_copy.default", "mul.Tensor", "div.Tensor", "mul.Scalar", "div.Scalar", "relu.default"),
)
EXACT: Final[Mapping[str, CutRule]] = {
    **{f"aten.{name}": _of_each_element for name in _COPIES_AND_ROUNDED},
    "aten.add.Tensor": _scaled_sum,
    "aten.sub.Tensor": _scaled_sum,
    "aten._log_softmax.default": _of_rows(1),
    "aten._log_softmax_backward_data.default": _of_rows(2),
    "aten.nll_loss_backward.default": _class_gradient,
    "aten.slice_backward.default": _slice_gradient,
    "aten.embedding.default": _looked_up,
    "aten.cat.default": _joined_items,
    "aten.max_pool2d_with_indices.default": _images,
    "aten.upsample_nearest2d.default": _images,
    "aten.relu_.default": _of_each_element,
    "aten.add_.Tensor": _scaled_sum,
}
"""Copies and casts, what IEEE 754 rounds in one way, kernels that take rows by themselves, and that pick."""
TRIED: Final[Mapping[str, CutRule]] = {
    "aten.mm.default": _product,
    "aten.addmm.default": _product,
    **{f"aten.{name}.default": _of_each_element for name in ("tanh", "tanh_backward", "gelu", "silu", "sigmoid")},
    "aten._softmax.default": _of_rows(1),
    "aten.native_layer_norm.default": _normalized_rows,
    "aten.native_group_norm.default": _normalized_groups,
    "aten.native_batch_norm.default": _normalized_images,
    "aten._native_batch_norm_legit_no_training.default": _normalized_images,
    "aten.convolution.default": _items,
    "aten.avg_pool2d.default": _images,
    "aten._adaptive_avg_pool2d.default": _images,
    "aten.mean.dim": _mean_of_items,
}
CHANGING: Final = frozenset({"aten.relu_.default", "aten.add_.Tensor"})
"""Operators whose result is their first operand, changed in its place."""
OF_ITEMS: Final = frozenset(
    operator
    for operator, rule in (*EXACT.items(), *TRIED.items())
    if rule in (_items, _images, _normalized_images, _normalized_groups, _mean_of_items, _joined_items)
)
"""Operators that are cut along the first axis of their result alone."""
CUTS: Final[Mapping[str, CutRule]] = {**EXACT, **TRIED}


def expected_cut(text: CallText, shapes: Shapes, box: Box) -> Cut:
    """What a part of the op calls, or why it cannot be cut so."""
    rule = CUTS.get(text.operator)
    return "is not known to be done in parts" if rule is None else rule(text, shapes, box)


def _product_summand(text: CallText, shapes: Shapes, low: int, high: int) -> ExpectedCut:
    """Columns of the first factor times the rows of the second at the same place, added to the sum of those before."""
    (rows, _), (_, columns) = shapes
    boxes: tuple[Box, ...] = (((0, rows), (low, high)), ((low, high), (0, columns)))
    if low == 0:
        return ExpectedCut(text=text, boxes=boxes)
    arguments: tuple[Argument, ...] = ([TENSOR, 0], *text.arguments, [DEFAULT], [DEFAULT])
    added = replace(text, operator="aten.addmm_.default", arguments=arguments)
    return ExpectedCut(text=added, boxes=(whole((rows, columns)), *boxes))


SUMS: Final[Mapping[str, Callable[[CallText, Shapes, int, int], ExpectedCut]]] = {"aten.mm.default": _product_summand}
"""Operators that sum over the last axis of their first operand, and how a range of it is added to those before."""

FORM_ALONE: Final = frozenset({"aten.ones_like.default", "aten.zeros_like.default", "aten.full_like.default"})
"""Operators of one tensor that ask for its form alone: dtype, shape and strides."""
