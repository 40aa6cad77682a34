"""Chains in a captured graph: consecutive ops that take units by themselves, items of a batch or rows.

A *unit* is one of ``count`` equal ranges of a buffer's bytes: an image, or a token. An op belongs to a chain where the
units of its result are boxes, and a box of them takes no more of what the chain makes than the same units. O(ops).
"""

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tmmu.ir.graph import DTYPE_BYTES, PERSISTENT_ROLES
from tmmu.ir.ids import BufferId, OpId, ValueId
from tmmu.ir.parts.boxes import Box, TensorWindow, whole
from tmmu.ir.parts.cut_call import BY_ITEM, IN_PLACE, cut_call
from tmmu.judge.rewrite.facts import computes_alone, has_same_bits
from tmmu.planner.fit.head import PRODUCTS, Steps
from tmmu.planner.fit.head_parts import LEAST_ROWS, rows_box

CONVOLUTION: Final = "aten.convolution.default"
LEAST_IMAGES: Final = 2


@dataclass(frozen=True, slots=True)
class Units:
    """Units ``[low, high)`` of ``count``."""

    low: int
    high: int
    count: int

    def bytes_of(self, size: int) -> tuple[int, int]:
        """The bytes of these units in a buffer of ``size`` bytes."""
        return size * self.low // self.count, size * self.high // self.count


@dataclass(slots=True)
class Chain:
    """``ops`` that take units by themselves, in order; ``beside``: ops between them that need none of what they make.

    ``sizes``: by buffer that the chain makes, the bytes that its units share.
    """

    ops: list[OpId] = field(default_factory=list)
    beside: list[OpId] = field(default_factory=list)
    sizes: dict[BufferId, int] = field(default_factory=dict)


def chains(steps: Steps, units: Units, ends: Container[OpId] = ()) -> Iterator[Chain]:
    """Every chain of which these units may be a part, the first one first.

    A chain ends before an op that needs more than its units, and before each of ``ends``.
    """
    chain = Chain()
    for op in steps.graph.ops.ids:
        is_end = op in ends and not changes_its_operand(steps, op)
        if is_end or box_of_units(steps, chain, op, units) is None:
            if not is_end and _is_beside(steps, chain, op):
                chain.beside.append(op)
                continue
            yield chain
            chain = Chain()
            if box_of_units(steps, chain, op, units) is None:
                continue
        chain.ops.append(op)
        window = steps.window(results_of(steps, op)[0])
        chain.sizes[steps.buffer(results_of(steps, op)[0])] = math.prod(window.shape) * DTYPE_BYTES[window.dtype]
    yield chain


def results_of(steps: Steps, op: OpId) -> tuple[ValueId, ...]:
    """The tensors that an op returns."""
    operands = steps.calls.operands[op]
    return operands[len(operands) - sum(steps.text(op).results) :]


def box_of_units(steps: Steps, chain: Chain, op: OpId, units: Units) -> Box | None:
    """The box of an op's first result that these units are, where the op takes no others of what the chain makes.

    ``None`` where there are so few that kernels take another way.
    """
    if not _is_plain(steps, op) or (changes_its_operand(steps, op) and not _made_by(steps, chain, op)):
        return None
    window, text = steps.window(results_of(steps, op)[0]), steps.text(op)
    box = _box(window, units)
    if (
        box is None
        or _has_few_rows(steps, op, box)
        or (text.operator in BY_ITEM and box[1:] != whole(window.shape[1:]))
    ):
        return None
    arguments = steps.arguments(op)
    taken = [steps.window(value) for value in arguments]
    cut = cut_call(text, [each.shape for each in taken], box)
    if cut is None or not _is_of_activations(steps, arguments):
        return None
    for value, each, part in zip(arguments, taken, cut.boxes, strict=True):
        size = chain.sizes.get(steps.buffer(value))
        if size is not None and not _is_within(each.narrowed(part), units.bytes_of(size)):
            return None
    return box


def changes_its_operand(steps: Steps, op: OpId) -> bool:
    """Whether an op's result is its first operand, changed in its place."""
    return steps.graph.ops.target[op] in IN_PLACE


def _made_by(steps: Steps, chain: Chain, op: OpId) -> bool:
    """Whether the chain has made what an op changes, all of it."""
    first, result = steps.arguments(op)[0], results_of(steps, op)[0]
    is_in_place = (steps.buffer(first), steps.window(first)) == (steps.buffer(result), steps.window(result))
    return is_in_place and steps.buffer(first) in chain.sizes


def _has_few_rows(steps: Steps, op: OpId, box: Box) -> bool:
    """Whether kernels take another way for so few rows of a product, or for one image of a convolution."""
    target, count = steps.graph.ops.target[op], box[0][1] - box[0][0]
    return (target in PRODUCTS and count < LEAST_ROWS) or (target == CONVOLUTION and count < LEAST_IMAGES)


def _is_plain(steps: Steps, op: OpId) -> bool:
    """Whether an op only computes results, each in a buffer of its own, of which the first alone is wanted."""
    graph, text, results = steps.graph, steps.text(op), results_of(steps, op)
    if not results or not all(text.results) or graph.ops.stage[op] != "forward":
        return False
    buffers = [steps.buffer(value) for value in results]
    writes = {steps.buffer(value) for value in graph.ops.writes[op]}
    if writes != set(buffers) or len(writes) != len(buffers):
        return False
    is_alone = computes_alone(text) and has_same_bits(text, graph.target)
    is_only_writer = all(_only_one_makes(steps, buffer, op) for buffer in buffers)
    unwanted = set(buffers[1:])
    outputs = {steps.buffer(value) for value in graph.outputs}
    is_unread = not any(steps.readers.get(buffer) for buffer in unwanted) and unwanted.isdisjoint(outputs)
    return is_alone and is_only_writer and is_unread


def _only_one_makes(steps: Steps, buffer: BufferId, op: OpId) -> bool:
    """Whether all that write a buffer are the one that makes it, and ops that change it; ``op`` is one of them."""
    first, *others = steps.writers[buffer]
    is_maker = op == first and not changes_its_operand(steps, op)
    return (is_maker or op in others) and all(changes_its_operand(steps, other) for other in others)


def _is_of_activations(steps: Steps, arguments: Sequence[ValueId]) -> bool:
    """Whether an op takes anything that is no weight, in real numbers."""
    role, windows = steps.graph.buffers.role, [steps.window(value) for value in arguments]
    is_fed = any(role[steps.buffer(value)] in ("input", "activation") for value in arguments)
    return is_fed and not any(window.dtype.startswith("complex") for window in windows)


def _is_beside(steps: Steps, chain: Chain, op: OpId) -> bool:
    """Whether an op may run before the chain: it takes nothing of it, and changes nothing."""
    graph = steps.graph
    touched = {steps.buffer(value) for value in (*graph.ops.reads[op], *graph.ops.writes[op])}
    written = {steps.buffer(value) for value in graph.ops.writes[op]}
    is_fresh = all(
        steps.writers[buffer] == [op] and graph.buffers.role[buffer] not in PERSISTENT_ROLES for buffer in written
    )
    return bool(chain.ops) and computes_alone(steps.text(op)) and is_fresh and touched.isdisjoint(chain.sizes)


def _box(window: TensorWindow, units: Units) -> Box | None:
    """The box of a dense window at the start of its buffer that these units are."""
    shape = window.shape
    if not shape or not window.is_dense or window.offset or not math.prod(shape):
        return None
    if not shape[0] % units.count and window.stride[0] * shape[0] == math.prod(shape):
        each = shape[0] // units.count
        return ((units.low * each, units.high * each), *whole(shape[1:]))
    rows, is_row_major = math.prod(shape[:-1]), window.stride == _row_major(shape)
    if rows % units.count or not is_row_major:
        return None
    each = rows // units.count
    return rows_box(shape, units.low * each, units.high * each)


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _is_within(window: TensorWindow, span: tuple[int, int]) -> bool:
    low, high = window.span
    return low == high or (span[0] <= low and high <= span[1])
