"""Head and loss in parts: logits, their softmax, loss and gradients some rows at a time, never whole.

Each part goes from the product to the gradients before the next one begins, in buffers of its own. The rows of the
input's gradient are written at their places. The gradient of the weights sums over all rows: added up part by part
where ``near`` rules are allowed, else it reads the gradient of the logits, which then is the one that is whole. Where
the gradient of the loss hangs on the loss itself, or no head is found, nothing is cut. O(size of the graph).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from tmmu.ir.graph import DTYPE_BYTES, PERSISTENT_ROLES, Graph
from tmmu.ir.ids import BufferId, OpId, ValueId
from tmmu.ir.parts.boxes import Box, TensorWindow, part_of, whole
from tmmu.ir.parts.cut_call import cut_call
from tmmu.ir.rewrite import (
    CLASSES,
    COLUMNS,
    LIKE,
    LOSS,
    NUMBERS,
    PART,
    PICKED,
    PLACED,
    ROWS,
    SAME,
    SUMMAND,
    WEIGHT,
    Part,
    Rewrite,
)  # fmt: skip
from tmmu.planner.fit.head import Head, Steps, heads
from tmmu.planner.order import dependence_edges

LEAST_ROWS: Final = 32
"""Rows of a part: kernels of products take another way for few, and have other bits."""
UNIT: Final = 64
"""Parts begin at multiples of so many rows where they have at least twice as many."""
FORM_ALONE: Final = ("aten.ones_like.default", "aten.full_like.default", "aten.zeros_like.default")
"""Operators that ask for the form of their operand alone."""


@dataclass(frozen=True, slots=True)
class _Row:
    """One op of the rewritten graph."""

    origin: OpId
    kind: str
    part: Part


SMALLEST_SHARE: Final = 1000
"""A head stays whole whose logits are less than one in so many bytes that the step makes."""


def head_parts(base: Graph, parts: int, *, near: bool = False, smallest: int | None = None) -> Rewrite:
    """The rewrite with each head of at least ``smallest`` bytes of logits (``None``: a share of what the step makes) in
    at least so many parts, fewer where they would have few rows; one that changes nothing where none can be cut.
    ``base`` has calls. ``near``: gradients of weights may be summed over parts.
    """
    steps = Steps.of(base)
    least = _bytes_made(base) // SMALLEST_SHARE if smallest is None else smallest
    groups: list[list[_Row]] = [[_Row(op, SAME, ())] for op in base.ops.ids]
    for head in heads(steps) if parts > 1 else ():
        if head.logits_bytes >= least:
            groups = _with_head(steps, head, groups, parts, near=near) or groups
    rows = [row for group in groups for row in group]
    return Rewrite(
        base_hash=base.ir_hash,
        origin=tuple(row.origin for row in rows),
        kind=tuple(row.kind for row in rows),
        part=tuple(row.part for row in rows),
    )


def _bytes_made(base: Graph) -> int:
    """Of all buffers that do not persist."""
    sizes = zip(base.buffers.bytes, base.buffers.role, strict=True)
    return sum(size for size, role in sizes if role not in PERSISTENT_ROLES)


def _with_head(
    steps: Steps, head: Head, groups: Sequence[list[_Row]], parts: int, *, near: bool
) -> list[list[_Row]] | None:
    """The groups of ops that stay together, with this head in parts; ``None`` where it cannot be."""
    ranges = row_ranges(head.rows, _period(steps, head), parts)
    cut = None if ranges is None or len(ranges) < 2 else _cut(steps, head, ranges, near=near)
    order = None if cut is None else _order(steps, head, cut, groups)
    if cut is None or order is None:
        return None
    before, likes, after = order
    place = next((index for index, group in enumerate(before) if group[0].origin in likes), len(before))
    like = (steps.calls.operands[head.loss][-1],)
    asking = [
        [_Row(group[0].origin, LIKE, like)] if group[0].origin in likes and group[0].kind == SAME else group
        for group in before[place:]
    ]
    return [*before[:place], _weight_rows(head), *asking, [*cut.rows, _Row(head.loss, PICKED, (LOSS,))], *after]


def _weight_rows(head: Head) -> list[_Row]:
    return [_Row(head.loss, PICKED, (step,)) for step in (CLASSES, COLUMNS, NUMBERS, WEIGHT)]


def row_ranges(rows: int, period: int, parts: int) -> list[tuple[int, int]] | None:
    """At least ``parts`` ranges of rows, none across a multiple of ``period`` unless it is of whole periods.

    Fewer where they would have less than ``LEAST_ROWS``; ``None`` where ``rows`` are no whole periods.
    """
    if not period or rows % period:
        return None
    count = rows // period
    if parts <= count:
        groups = max(1, min(parts, rows // LEAST_ROWS))
        bounds = [count * index // groups * period for index in range(groups + 1)]
        return [*pairwise(bounds)]
    each = max(1, min(-(-parts // count), period // LEAST_ROWS))
    unit = UNIT if period >= 2 * UNIT * each else 1
    inner = [*(period * index // each // unit * unit for index in range(each)), period]
    return [(start + low, start + high) for start in range(0, rows, period) for low, high in pairwise(inner)]


def _period(steps: Steps, head: Head) -> int:
    """Rows of one index of the first axis, where logits have three axes: no part may cross them. 0: several."""
    windows = [steps.window(steps.result(op)) for op in head.row_ops]
    lengths = {head.rows // window.shape[0] for window in windows if len(window.shape) > 2 and window.shape[0] > 1}
    return lengths.pop() if len(lengths) == 1 else 0 if lengths else head.rows


@dataclass(slots=True)
class _Cut:
    """The ops that are cut, and the rows that stand for them."""

    rows: list[_Row] = field(default_factory=list)
    ops: dict[OpId, None] = field(default_factory=dict)


def _cut(steps: Steps, head: Head, ranges: Sequence[tuple[int, int]], *, near: bool) -> _Cut | None:
    """The rows of each part in turn; ``None`` where a part needs what no box is, or the loss would miss rows."""
    products = [product for op in head.products if (product := _product(steps, head, op, near=near)) is not None]
    placed = _read_whole(steps, head, {product.op for product in products})
    cut = _Cut(ops=dict.fromkeys((head.loss, *head.row_ops, *(product.op for product in products))))
    picked = 0
    for low, high in ranges:
        boxes = _boxes(steps, head, placed, products, (low, high))
        rows_of_loss = None if boxes is None else boxes[_softmax(steps, head)][0]
        if boxes is None or rows_of_loss is None or rows_of_loss[0] != picked:
            return None
        picked = rows_of_loss[1]
        cut.rows += _rows_of_part(steps, head, placed, boxes)
        cut.rows += [_product_row(steps, product, low, high) for product in products]
    return cut if picked == steps.window(steps.arguments(head.loss)[0]).shape[0] else None


def _softmax(steps: Steps, head: Head) -> OpId:
    softmax = steps.only_writer(steps.arguments(head.loss)[0])
    assert softmax is not None  # a head has one
    return softmax


@dataclass(frozen=True, slots=True, kw_only=True)
class _Product:
    """A product of gradients of logits that is cut by rows: along its own rows, or along what it sums over."""

    op: OpId
    gradient: ValueId
    is_sum: bool


def _product(steps: Steps, head: Head, op: OpId, *, near: bool) -> _Product | None:
    """How a reader of the gradients of logits is cut; ``None``: it is run whole."""
    results = {steps.buffer(steps.result(each)) for each in head.row_ops}
    arguments = steps.arguments(op)
    places = [index for index, value in enumerate(arguments) if steps.buffer(value) in results]
    is_first = steps.writers[steps.buffer(steps.result(op))][0] == op  # an optimizer may change gradients after it
    if len(places) != 1 or steps.graph.ops.target[op] != "aten.mm.default" or not is_first:
        return None
    (place,) = places
    window = steps.window(arguments[place])
    axes = [axis for axis, n in enumerate(window.shape) if n == head.rows and window.stride[axis] == head.classes]
    if not window.is_dense or len(axes) != 1:
        return None
    is_sum = axes[0] != place
    can_be_placed = place == 0 and _is_row_major(steps.window(steps.result(op)))
    if not (near if is_sum else can_be_placed):
        return None
    return _Product(op=op, gradient=arguments[place], is_sum=is_sum)


def _product_row(steps: Steps, product: _Product, low: int, high: int) -> _Row:
    if product.is_sum:
        return _Row(product.op, SUMMAND, (low, high))
    shape = steps.window(steps.result(product.op)).shape
    return _Row(product.op, PLACED, part_of(((low, high), (0, shape[1])), shape))


def _read_whole(steps: Steps, head: Head, products: set[OpId]) -> set[OpId]:
    """Of the ops that are cut by rows, those whose results others read, or are outputs: they are written whole."""
    cut = {*head.row_ops, *products, head.loss}
    outputs = {steps.buffer(value) for value in steps.graph.outputs}
    whole_ops = set()
    for op in head.row_ops:
        buffer = steps.buffer(steps.result(op))
        if buffer in outputs or not set(steps.readers.get(buffer, ())) <= cut:
            whole_ops.add(op)
    return whole_ops


def _rows_of_part(steps: Steps, head: Head, placed: set[OpId], boxes: Mapping[OpId, Box]) -> Iterator[_Row]:
    """The ops of a part in the order of the base; what the loss takes is taken as soon as it is there."""
    for op in head.row_ops:
        shape = steps.window(steps.result(op)).shape
        yield _Row(op, PLACED if op in placed else PART, part_of(boxes[op], shape))
        if op == _softmax(steps, head):
            yield _Row(head.loss, PICKED, (ROWS, *boxes[op][0]))


def _boxes(
    steps: Steps, head: Head, placed: set[OpId], products: Sequence[_Product], part: tuple[int, int]
) -> dict[OpId, Box] | None:
    """Of each op that is cut by rows, the box of its result that this part of the logits' rows needs."""
    needed = {steps.buffer(product.gradient): part for product in products}
    needed |= {steps.buffer(steps.result(op)): part for op in placed}
    boxes: dict[OpId, Box] = {}
    of_head = {steps.buffer(steps.result(op)) for op in head.row_ops}
    for op in reversed(head.row_ops):
        window, buffer = steps.window(steps.result(op)), steps.buffer(steps.result(op))
        rows = part if _row_count(window) == head.rows else needed.get(buffer)
        if rows is None or buffer not in needed or not _is_row_major(window):
            return None
        box = rows_box(window.shape, *rows)
        operands = [steps.window(value) for value in steps.arguments(op)]
        cut = None if box is None else cut_call(steps.text(op), [operand.shape for operand in operands], box)
        if box is None or cut is None:
            return None
        boxes[op] = box
        for value, operand, taken in zip(steps.arguments(op), operands, cut.boxes, strict=True):
            if steps.buffer(value) in of_head:
                _ask(needed, steps.buffer(value), _rows_of(operand.narrowed(taken), head))
    return boxes


def _ask(needed: dict[BufferId, tuple[int, int]], buffer: BufferId, rows: tuple[int, int]) -> None:
    low, high = needed.get(buffer, rows)
    needed[buffer] = (min(low, rows[0]), max(high, rows[1]))


def _rows_of(window: TensorWindow, head: Head) -> tuple[int, int]:
    """Which rows of its buffer a window touches."""
    low, high = window.span
    row = head.classes * DTYPE_BYTES[window.dtype]
    return low // row, -(-high // row)


def _row_count(window: TensorWindow) -> int:
    return math.prod(window.shape[:-1])


def _is_row_major(window: TensorWindow) -> bool:
    """Whether a window begins its buffer, with its rows one after the other."""
    steps = [math.prod(window.shape[axis + 1 :]) for axis in range(len(window.shape))]
    axes = zip(window.shape, window.stride, steps, strict=True)
    return not window.offset and all(n == 1 or stride == step for n, stride, step in axes)


def rows_box(shape: Sequence[int], low: int, high: int) -> Box | None:
    """The box of rows ``[low, high)``, which the axes before the last one count; ``None`` where it is no box."""
    if len(shape) == 2:
        return ((low, high), (0, shape[1])) if 0 <= low < high <= shape[0] else None
    inner = math.prod(shape[1:-1])
    if not low % inner and not high % inner:
        return ((low // inner, high // inner), *whole(shape[1:]))
    first = low // inner
    rest = rows_box(shape[1:], low - first * inner, high - first * inner)
    return None if rest is None else ((first, first + 1), *rest)


def _order(
    steps: Steps, head: Head, cut: _Cut, groups: Sequence[list[_Row]]
) -> tuple[list[list[_Row]], set[OpId], list[list[_Row]]] | None:
    """(groups before the parts, the ops that may ask another tensor for its form, groups after the parts).

    ``None`` where a part hangs on what hangs on a part of another op, such as the value of the loss, or where an op is
    of another head.
    """
    group_of = {row.origin: index for index, group in enumerate(groups) if _is_whole(group) for row in group}
    if any(len(groups[group_of[op]]) > 1 for op in cut.ops):
        return None
    successors = dependence_edges(steps.graph, steps.graph.ops.ids)
    likes, behind, pending = set[OpId](), set[OpId](), [*cut.ops]
    while pending:
        for op in map(OpId, successors[pending.pop()]):
            if _asks_form_of_weight(steps, head, op):
                likes.add(op)
            elif op not in behind and op not in cut.ops:
                together = {row.origin for row in groups[group_of[op]]}
                behind |= together
                pending += together
    if any(not cut.ops.keys().isdisjoint(map(OpId, successors[op])) for op in behind):
        return None
    last = max(group_of[op] for op in cut.ops)
    others = [(index, group) for index, group in enumerate(groups) if group[0].origin not in cut.ops]
    before = [group for index, group in others if index < last and not (_is_whole(group) and group[0].origin in behind)]
    after = [group for index, group in others if index > last or (_is_whole(group) and group[0].origin in behind)]
    return before, likes, after


def _is_whole(group: Sequence[_Row]) -> bool:
    """Whether a group is all that stands for its ops, and not what makes a total weight before them."""
    return group[-1].part != (WEIGHT,) or group[-1].kind != PICKED


def _asks_form_of_weight(steps: Steps, head: Head, op: OpId) -> bool:
    """Whether an op asks a tensor for its form, and the total weight of the loss has it."""
    if steps.graph.ops.target[op] not in FORM_ALONE:
        return False
    (argument,) = steps.arguments(op)
    return steps.window(argument).has_form_of(steps.window(steps.calls.operands[head.loss][-1]))
