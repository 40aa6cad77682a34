"""The ops that stand for a part of an op, or for a loss by class: their calls on windows, and where results go."""

from collections.abc import Sequence
from typing import Final

from tmmu.errors import InternalError
from tmmu.ir.call_text import DEFAULT, TENSOR, Argument, CallText, decode_call, encode_call
from tmmu.ir.graph import DTYPE_BYTES, PURE
from tmmu.ir.ids import BufferId, OpId, ValueId
from tmmu.ir.parts.boxes import Box, TensorWindow, box_of, whole, window_of
from tmmu.ir.parts.cut_call import BY_ITEM, IN_PLACE, cut_beside, cut_call, cut_sum
from tmmu.ir.parts.tables import ALIGNMENT, PieceOfBuffer, Row, Tables
from tmmu.ir.rewrite import (
    CLASSES,
    COLUMNS,
    LIKE,
    LOSS,
    NUMBERS,
    PART,
    PICKED,
    PICKED_STEPS,
    ROWS,
    SUMMAND,
    WEIGHT,
    Part,
)

_TENSOR: Final[Argument] = [TENSOR, 0]
_NO_OPTIONS: Final[tuple[Argument, ...]] = ([DEFAULT], [DEFAULT], [DEFAULT], [DEFAULT], [DEFAULT])


def add_part(tables: Tables, op: OpId, kind: str, part: Part) -> None:
    """The next op, of a kind that reads other windows than its origin."""
    if kind == LIKE:
        _add_like(tables, op, part)
    elif kind == PICKED:
        _add_picked(tables, op, part)
    elif kind == SUMMAND:
        _add_summand(tables, op, part)
    else:
        _add_box(tables, op, part, in_own_buffer=kind == PART)


def _text(tables: Tables, op: OpId) -> CallText:
    text = decode_call(tables.calls.texts[tables.calls.call[op]])
    assert text is not None  # the graph is legal
    return text


def _arguments(tables: Tables, op: OpId) -> tuple[ValueId, ...]:
    return tables.calls.operands[op][:-1]


def _shapes(tables: Tables, values: Sequence[ValueId]) -> list[tuple[int, ...]]:
    return [tables.base.values.shape[value] for value in values]


def _append(  # noqa: PLR0913 - a call and what it touches
    tables: Tables,
    op: OpId,
    text: CallText,
    arguments: Sequence[ValueId],
    results: Sequence[ValueId],
    *,
    also_reads: Sequence[ValueId] = (),
    also_writes: Sequence[ValueId] = (),
    share: tuple[int, int, int] = (0, 1, 1),
    numbers: tuple[bytes, ...] = (),
) -> None:
    tables.append(
        Row(
            origin=op,
            target=text.operator,
            reads=tuple(dict.fromkeys((*arguments, *also_reads))),
            writes=tuple(dict.fromkeys((*results, *also_writes))),
            stage=tables.base.ops.stage[op],
            call=tables.texts.setdefault(encode_call(text), len(tables.texts)),
            operands=(*arguments, *results),
            effect=PURE,
            numbers=numbers,
            share=share,
        )
    )


def _add_box(tables: Tables, op: OpId, part: Part, *, in_own_buffer: bool) -> None:
    """A box of the first result; those of others lie in buffers of their own."""
    text, operands = _text(tables, op), tables.calls.operands[op]
    split = len(operands) - sum(text.results)
    if split == len(operands):
        raise InternalError(f"{text.operator} makes nothing that has parts")
    arguments, (result, *others) = operands[:split], operands[split:]
    shape = tables.base.values.shape[result]
    box = box_of(part, shape)
    is_of_items = text.operator not in BY_ITEM or (box is not None and box[1:] == whole(shape[1:]))
    cut = None if box is None or not is_of_items else cut_call(text, _shapes(tables, arguments), box)
    if box is None or cut is None:
        raise InternalError(f"{tables.base.ops.target[op]} of {shape} has no part {part}")
    taken = [tables.narrowed(value, each) for value, each in zip(arguments, cut.boxes, strict=True)]
    buffer, window = tables.base.values.buffer[result], window_of(tables.base, result).narrowed(box)
    if text.operator in IN_PLACE:
        written, before = _changed(tables, buffer, window, taken[0], in_own_buffer=in_own_buffer)
    else:
        place = _in_own_buffer if in_own_buffer else _at_its_place
        written, before = place(tables, buffer, window)
    beside = [
        _in_own_buffer(tables, tables.base.values.buffer[other], window_of(tables.base, other).narrowed(each))[0]
        for other, each in zip(others, cut_beside(text, _shapes(tables, others), box), strict=True)
    ]
    _append(
        tables, op, cut.text, taken, [written, *beside],
        also_reads=before, share=_share(box, shape), numbers=tables.calls.numbers[op],
    )  # fmt: skip


def _share(box: Box, shape: Sequence[int]) -> tuple[int, int, int]:
    """Which of the elements, in the order of the outermost axes, a box has: shares of parts in order add up."""
    total, low, count = 1, 0, 1
    for (begin, end), n in zip(box, shape, strict=True):
        total, low, count = total * n, low * n + begin, count * (end - begin)
    return low, low + count, total


def _in_own_buffer(tables: Tables, buffer: BufferId, window: TensorWindow) -> tuple[ValueId, tuple[ValueId, ...]]:
    low, high = window.span
    shift = low - low % ALIGNMENT
    own = tables.fresh_buffer(high - shift, buffer)
    tables.pieces.setdefault(buffer, []).append(PieceOfBuffer(low, high, own, shift, len(tables.rows)))
    return _result(tables, own, window._replace(offset=low - shift)), ()


def _changed(
    tables: Tables, buffer: BufferId, window: TensorWindow, before: ValueId, *, in_own_buffer: bool
) -> tuple[ValueId, tuple[ValueId, ...]]:
    """The result in the buffer of the part that it changes; where it would change the whole, in one of its own.

    Such a row comes from outside alone. It changes more than its part, so that the judge of rewrites refuses it.
    """
    own, place = tables.place_of(before)
    if not in_own_buffer:
        raise InternalError(f"part of buffer {buffer} changes what is at its place")
    if own < len(tables.base.buffers):
        return _in_own_buffer(tables, buffer, window)
    piece = PieceOfBuffer(*window.span, own, window.offset - place.offset, len(tables.rows))
    tables.pieces.setdefault(buffer, []).append(piece)
    return _result(tables, own, place), ()


def _at_its_place(tables: Tables, buffer: BufferId, window: TensorWindow) -> tuple[ValueId, tuple[ValueId, ...]]:
    """The result, and what is there before, which is read because it is left alone."""
    low, high = window.span
    before = tables.placed.get(buffer)
    read: tuple[ValueId, ...] = ()
    if before is not None:
        step = DTYPE_BYTES[window.dtype]
        there = TensorWindow(before.low, ((before.high - before.low) // step,), (1,), window.dtype)
        read, low = (tables.window_at(buffer, before.row, there),), before.low
    tables.placed[buffer] = PieceOfBuffer(low, high, buffer, 0, len(tables.rows))
    return _result(tables, buffer, window), read


def _result(tables: Tables, buffer: BufferId, window: TensorWindow) -> ValueId:
    """A value that the next row writes."""
    value = tables.fresh_value(buffer, window)
    tables.known[buffer, len(tables.rows), window] = value
    return value


def _add_summand(tables: Tables, op: OpId, part: Part) -> None:
    """The first into the result, a later one added to it."""
    result, arguments = tables.calls.operands[op][-1], _arguments(tables, op)
    shapes = _shapes(tables, arguments)
    if len(part) != 2 or not 0 <= part[0] < part[1] <= shapes[0][-1]:
        raise InternalError(f"{part} is no range of the sums of {tables.base.ops.target[op]}")
    cut = cut_sum(_text(tables, op), shapes, *part)
    taken = [tables.narrowed(value, each) for value, each in zip(arguments, cut.boxes[-2:], strict=True)]
    buffer, window = tables.base.values.buffer[result], window_of(tables.base, result)
    before = tables.placed.get(buffer)
    if part[0] and before is not None:
        taken = [tables.window_at(buffer, before.row, window), *taken]
    tables.placed[buffer] = PieceOfBuffer(*window.span, buffer, 0, len(tables.rows))
    share = (*part, shapes[0][-1])
    _append(tables, op, cut.text, taken, [_result(tables, buffer, window)], share=share)


def _add_like(tables: Tables, op: OpId, part: Part) -> None:
    """The origin on another value of the same form."""
    if len(part) != 1 or not 0 <= part[0] < len(tables.base.values) or len(_arguments(tables, op)) != 1:
        raise InternalError(f"{part} is no value that {tables.base.ops.target[op]} could be like")
    result, writes = tables.calls.operands[op][-1], tables.base.ops.writes[op]
    tables.take_base_buffers(tables.base.values.buffer[value] for value in writes)
    taken = tables.current(ValueId(part[0]))
    numbers = tables.calls.numbers[op]
    _append(tables, op, _text(tables, op), [taken], [result], also_writes=writes, numbers=numbers)


def _add_picked(tables: Tables, op: OpId, part: Part) -> None:
    """One of the ops that stand for a loss by class."""
    if not part or part[0] not in PICKED_STEPS or len(part) != (3 if part[0] == ROWS else 1):
        raise InternalError(f"{part} is no step of a loss")
    _Picked(tables, op).add(*part)


class _Picked:
    """A loss by class, of operands numbers, targets, loss and total weight; its fresh buffers are named by it."""

    def __init__(self, tables: Tables, op: OpId) -> None:
        self.tables, self.op, self.text = tables, op, _text(tables, op)
        if self.text.operator != "aten.nll_loss_forward.default" or self.text.arguments[2] != []:
            raise InternalError(f"{self.text.operator} is no loss by class without weights")
        self.numbers, self.targets, self.loss, self.weight = tables.calls.operands[op]
        self.rows, self.classes = tables.base.values.shape[self.numbers]
        self.dtype = tables.base.values.dtype[self.numbers]
        integers = tables.base.values.dtype[self.targets]
        self.column = TensorWindow(0, (self.rows, 1), (1, 1), self.dtype)
        self.form = TensorWindow(0, (self.rows,), (1,), integers)

    def add(self, step: int, low: int = 0, high: int = 0) -> None:
        """The op of a step."""
        if step == ROWS:
            self._add_rows(low, high)
        elif step in (WEIGHT, LOSS):
            self._add_loss(step)
        else:
            self._add_column(step)

    def _named(self, step: int) -> BufferId:
        """The buffer of what a step makes, by a key below all ids: it stands for nothing of the base."""
        return BufferId(-1 - len(PICKED_STEPS) * self.op - step)

    def _of_step(self, step: int, window: TensorWindow) -> ValueId:
        pieces = self.tables.pieces.get(self._named(step))
        if not pieces or pieces[-1].row < 0:
            raise InternalError(f"op {self.op} has a step of a loss before step {step}")
        piece = pieces[-1]
        return self.tables.window_at(piece.buffer, piece.row, window)

    def _fresh(self, step: int, window: TensorWindow) -> ValueId:
        tables, (low, high) = self.tables, window.span
        buffer = tables.fresh_buffer(high, tables.base.values.buffer[self.loss])
        piece = PieceOfBuffer(low, high, buffer, 0, len(tables.rows))
        tables.pieces.setdefault(self._named(step), []).append(piece)
        return _result(tables, buffer, window)

    def _add_column(self, step: int) -> None:
        """The targets as classes of one column, the columns to pick, or the classes as numbers."""
        if step == NUMBERS:
            arguments: tuple[Argument, ...] = (_TENSOR, ["dtype", self.dtype], *_NO_OPTIONS)
            text = CallText(operator="aten._to_copy.default", arguments=arguments, results=(True,))
            result = self.column._replace(shape=(self.rows,), stride=(1,))
            taken = self._of_step(CLASSES, self.form)
        else:
            name = "aten.clamp_max.default" if step == CLASSES else "aten.clamp_min.default"
            text = CallText(operator=name, arguments=(_TENSOR, 0), results=(True,))
            taken, result = self.tables.narrowed(self.targets, whole((self.rows,))), self.form
        _append(self.tables, self.op, text, [taken], [self._fresh(step, result)], share=(0, 0, 1))

    def _add_rows(self, low: int, high: int) -> None:
        """What stands at the columns of rows ``[low, high)``, after the rows before them."""
        if not 0 <= low < high <= self.rows:
            raise InternalError(f"rows {low} to {high} are none of {self.rows}")
        taken = self.tables.narrowed(self.numbers, ((low, high), (0, self.classes)))
        column = self.form._replace(shape=(self.rows, 1), stride=(1, 1))
        columns = self._of_step(COLUMNS, column.narrowed(((low, high), (0, 1))))
        arguments: tuple[Argument, ...] = (_TENSOR, 1, _TENSOR, [DEFAULT])
        text = CallText(operator="aten.gather.default", arguments=arguments, results=(True,))
        key = self._named(ROWS)
        if key not in self.tables.pieces:
            buffer = self.tables.fresh_buffer(self.column.span[1], self.tables.base.values.buffer[self.loss])
            self.tables.pieces[key] = [PieceOfBuffer(0, 0, buffer, 0, -1)]
        buffer = self.tables.pieces[key][-1].buffer
        result, before = _at_its_place(self.tables, buffer, self.column.narrowed(((low, high), (0, 1))))
        self.tables.pieces[key].append(self.tables.placed[buffer])
        _append(self.tables, self.op, text, [taken, columns], [result], also_reads=before, share=(0, 0, 1))

    def _add_loss(self, step: int) -> None:
        """The loss, of numbers for its total weight, or of the picked rows; the other result is not the base's."""
        tables, base = self.tables, self.tables.base
        kept, other = (self.loss, self.weight) if step == LOSS else (self.weight, self.loss)
        buffer = base.values.buffer[kept]
        writes = [value for value in base.ops.writes[self.op] if base.values.buffer[value] == buffer]
        tables.take_base_buffers([buffer])
        taken = [self._of_step(ROWS if step == LOSS else NUMBERS, self.column), self._of_step(CLASSES, self.form)]
        junk = self._fresh(step, window_of(base, other)._replace(offset=0))
        results = [kept, junk] if step == LOSS else [junk, kept]
        share = (0, 1, 1) if step == LOSS else (0, 0, 1)
        _append(tables, self.op, self.text, taken, results, also_writes=writes, share=share)
