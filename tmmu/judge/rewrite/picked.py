"""A loss by class as the loss of one column: ``loss(x, t) = loss(x[i, t[i]], 0)``, with the bits of the whole.

The kernel of a loss by class reads of each row the number at its target, if it is not ignored, and adds these in the
order of the rows. So the loss of a column that holds those numbers, with class 0 for each row that counts, adds the
same numbers in the same order; its total weight depends on the targets alone. Targets are at least 0, but for the
index that is ignored, which is below: ``clamp_max(t, 0)`` is the class, ``clamp_min(t, 0)`` a column that is there.
A target that eager refuses is refused by ``gather``, or is a class that the loss of the column refuses. Tried against
torch by ``tests/unit/judge/rewrite/test_picked.py``.
"""

from dataclasses import dataclass
from typing import Final

from tmmu.ir.call_text import DEFAULT, TENSOR, Argument, CallText
from tmmu.ir.parts.boxes import TensorWindow
from tmmu.ir.rewrite import CLASSES, COLUMNS, LOSS, NUMBERS, PICKED_STEPS, ROWS, Part

LOSS_BY_CLASS: Final = "aten.nll_loss_forward.default"
_TENSOR: Final[Argument] = [TENSOR, 0]
_NO_OPTIONS: Final[tuple[Argument, ...]] = ([DEFAULT], [DEFAULT], [DEFAULT], [DEFAULT], [DEFAULT])


@dataclass(frozen=True, slots=True, kw_only=True)
class PickedStep:
    """The call of a step. ``takes``: per argument, the step that made it, or ``-1 - n`` for operand ``n`` of the loss,
    and its window; ``makes``: the windows of its results.
    """

    text: CallText
    takes: tuple[tuple[int, TensorWindow], ...]
    makes: tuple[TensorWindow, ...]


def picked_objection(text: CallText, numbers: TensorWindow, targets: TensorWindow) -> str:
    """Why a loss is not that of one column; empty where it is."""
    if text.operator != LOSS_BY_CLASS:
        return "is no loss by class"
    _, _, weights, reduction, ignored = text.arguments
    if weights != [] or reduction not in (1, 2):
        return "has weights, or a loss for each row"
    if type(ignored) is not int or ignored >= 0 or targets.dtype != "int64" or len(numbers.shape) != 2:
        return "ignores an index that may be a class"
    return ""


def picked_step(text: CallText, numbers: TensorWindow, targets: TensorWindow, part: Part) -> PickedStep | str:
    """The call of a step, what it takes, and the windows that it makes in buffers of their own."""
    objection = picked_objection(text, numbers, targets)
    rows = numbers.shape[0]
    if objection:
        return objection
    if not part or part[0] not in PICKED_STEPS or len(part) != (3 if part[0] == ROWS else 1):
        return f"has no step {part}"
    low, high = part[1:] if part[0] == ROWS else (0, rows)
    if not 0 <= low < high <= rows:
        return f"has no rows {low} to {high}"
    return _step(text, numbers, targets, part[0], (low, high))


def _step(
    text: CallText, numbers: TensorWindow, targets: TensorWindow, step: int, chosen: tuple[int, int]
) -> PickedStep:
    rows, classes = numbers.shape
    integers, floats = TensorWindow(0, (rows,), (1,), "int64"), TensorWindow(0, (rows,), (1,), numbers.dtype)
    scalar, column = TensorWindow(0, (), (), numbers.dtype), floats._replace(shape=(rows, 1), stride=(1, 1))
    if step in (CLASSES, COLUMNS):
        call = _call("clamp_max" if step == CLASSES else "clamp_min", _TENSOR, 0)
        return PickedStep(text=call, takes=((-2, targets),), makes=(integers,))
    if step == NUMBERS:
        call = _call("_to_copy", _TENSOR, ["dtype", numbers.dtype], *_NO_OPTIONS)
        return PickedStep(text=call, takes=((CLASSES, integers),), makes=(floats,))
    if step == ROWS:
        box = (chosen, (0, 1))
        picked = numbers.narrowed((chosen, (0, classes)))
        columns = integers._replace(shape=(rows, 1), stride=(1, 1)).narrowed(box)
        call = _call("gather", _TENSOR, 1, _TENSOR, [DEFAULT])
        return PickedStep(text=call, takes=((-1, picked), (COLUMNS, columns)), makes=(column.narrowed(box),))
    made_by = ROWS if step == LOSS else NUMBERS
    return PickedStep(text=text, takes=((made_by, column), (CLASSES, integers)), makes=(scalar, scalar))


def _call(name: str, *arguments: Argument) -> CallText:
    return CallText(operator=f"aten.{name}.default", arguments=arguments, results=(True,))
