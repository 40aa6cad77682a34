"""Along which axes an op may be cut: one table, without torch. What has no row is run whole.

A row says, of a box of the only result, which boxes of its operands an op takes for it and how its other arguments
change; then each element is computed from the same numbers by the same operations. ``EXACT`` rows have the bits of the
whole however they are cut. Those of ``TRIED`` do where the kernels do not add in another order for another size, nor
compute another approximation where vectors end: parts of them are tried against the whole on each device
(``runtime/steps/part_trial.py``). ``SUMS`` are only near: sums over ranges, added up. Rows are tried against
torch by ``tests/unit/judge/rewrite/test_cuts.py``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from tmmu.ir.call_text import DEFAULT, LIST, TENSOR, Argument, CallText
from tmmu.ir.parts.boxes import Box, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedCut:
    """The call of a part, and of each tensor argument the box that it takes."""

    text: CallText
    boxes: tuple[Box, ...]


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


_COPIES_AND_ROUNDED: Final = ("clone.default", "_to_copy.default", "mul.Tensor", "div.Tensor")
EXACT: Final[Mapping[str, CutRule]] = {
    **{f"aten.{name}": _of_each_element for name in _COPIES_AND_ROUNDED},
    "aten.add.Tensor": _scaled_sum,
    "aten.sub.Tensor": _scaled_sum,
    "aten._log_softmax.default": _of_rows(1),
    "aten._log_softmax_backward_data.default": _of_rows(2),
    "aten.nll_loss_backward.default": _class_gradient,
    "aten.slice_backward.default": _slice_gradient,
}
"""Copies and casts, what IEEE 754 rounds in one way, and kernels that take rows by themselves."""
TRIED: Final[Mapping[str, CutRule]] = {
    "aten.mm.default": _product,
    "aten.addmm.default": _product,
    "aten.tanh.default": _of_each_element,
    "aten.tanh_backward.default": _of_each_element,
}
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
