"""The head of a model in a captured step: the product that makes logits, the loss of them, and their gradients.

Found by operators and dataflow: from a loss by class back over what is done element by element to a product, and from
there to all that reads what is as large as the logits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tmmu.ir.call_text import CallText, decode_call
from tmmu.ir.graph import DTYPE_BYTES, Graph, OpCalls
from tmmu.ir.ids import BufferId, OpId, ValueId
from tmmu.ir.parts.boxes import TensorWindow, window_of

LOSS: Final = "aten.nll_loss_forward.default"
LOSS_TENSORS, LOSS_ARGUMENTS = 2, 5
"""Of a loss: numbers and targets, and what it is called with."""
LOG_SOFTMAX: Final = "aten._log_softmax.default"
PRODUCTS: Final = ("aten.mm.default", "aten.addmm.default")
ROW_BY_ROW: Final = frozenset(
    {
        *("aten.clone.default", "aten._to_copy.default", "aten.mul.Tensor", "aten.div.Tensor"),
        *(LOG_SOFTMAX, "aten._log_softmax_backward_data.default"),
        *("aten.nll_loss_backward.default", "aten.slice_backward.default"),
        *("aten.tanh.default", "aten.tanh_backward.default"),
    }
)
"""Operators on logits that take rows by themselves; their last axis is that of the classes."""


@dataclass(frozen=True, kw_only=True)
class Steps:
    """A captured graph, and who writes and reads what."""

    graph: Graph
    calls: OpCalls
    texts: Sequence[CallText | None]
    writers: dict[BufferId, list[OpId]]
    readers: dict[BufferId, list[OpId]]

    @classmethod
    def of(cls, graph: Graph) -> "Steps":
        """Walks the graph once. It has calls."""
        assert graph.calls is not None
        writers: dict[BufferId, list[OpId]] = {}
        readers: dict[BufferId, list[OpId]] = {}
        for op in graph.ops.ids:
            for table, values in ((writers, graph.ops.writes[op]), (readers, graph.ops.reads[op])):
                for buffer in dict.fromkeys(graph.values.buffer[value] for value in values):
                    table.setdefault(buffer, []).append(op)
        texts = [decode_call(text) for text in graph.calls.texts]
        return cls(graph=graph, calls=graph.calls, texts=texts, writers=writers, readers=readers)

    def text(self, op: OpId) -> CallText:
        """The call of an op."""
        text = self.texts[self.calls.call[op]]
        assert text is not None  # the graph is legal
        return text

    def arguments(self, op: OpId) -> tuple[ValueId, ...]:
        """Its tensor arguments."""
        operands = self.calls.operands[op]
        return operands[: len(operands) - sum(self.text(op).results)]

    def result(self, op: OpId) -> ValueId:
        """Its only result."""
        return self.calls.operands[op][-1]

    def buffer(self, value: ValueId) -> BufferId:
        """Where a value lies."""
        return self.graph.values.buffer[value]

    def window(self, value: ValueId) -> TensorWindow:
        """The window of a value."""
        return window_of(self.graph, value)

    def only_writer(self, value: ValueId) -> OpId | None:
        """The op that makes the only version of the value's buffer; ``None`` where that is no single op."""
        writers = self.writers.get(self.buffer(value), [])
        return writers[0] if len(writers) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """``row_ops``: what is cut by rows, in order, the product first; ``products``: what reads the gradients of logits.

    ``rows`` and ``classes`` of the logits, as the product makes them.
    """

    loss: OpId
    row_ops: tuple[OpId, ...]
    products: tuple[OpId, ...]
    rows: int
    classes: int
    logits_bytes: int


def heads(steps: Steps) -> list[Head]:
    """Every head that may be cut, that of the largest logits first."""
    found = [head for op in steps.graph.ops.ids if (head := _head_of(steps, op)) is not None]
    return sorted(found, key=lambda head: (-head.logits_bytes, head.loss))


def _head_of(steps: Steps, loss: OpId) -> Head | None:
    """The head of which this op is the loss."""
    if steps.graph.ops.target[loss] != LOSS or not _is_loss_of_one_column(steps, loss):
        return None
    softmax = steps.only_writer(steps.arguments(loss)[0])
    if softmax is None or steps.graph.ops.target[softmax] != LOG_SOFTMAX:
        return None
    chain = _back_to_product(steps, softmax)
    if not chain:
        return None
    logits = steps.window(steps.result(chain[0]))
    rows, classes = logits.shape
    size = rows * classes * DTYPE_BYTES[logits.dtype]
    row_ops, products = _forward(steps, chain)
    return Head(loss=loss, row_ops=row_ops, products=products, rows=rows, classes=classes, logits_bytes=size)


def _is_loss_of_one_column(steps: Steps, loss: OpId) -> bool:
    """Whether the judge of rewrites knows it as the loss of a column: no weights, and what is ignored is no class."""
    tensors, arguments = steps.arguments(loss), steps.text(loss).arguments
    if len(tensors) < LOSS_TENSORS or len(arguments) != LOSS_ARGUMENTS:  # in a graph from a file
        return False
    numbers, targets = (steps.window(value) for value in tensors[:LOSS_TENSORS])
    *_, weights, reduction, ignored = arguments
    is_negative = isinstance(ignored, int) and ignored < 0
    return (
        weights == [] and reduction in (1, 2) and is_negative and targets.dtype == "int64" and len(numbers.shape) == 2
    )


def _back_to_product(steps: Steps, op: OpId) -> list[OpId]:
    """From the product of the logits to ``op``; empty where something else is between."""
    chain = [op]
    while steps.graph.ops.target[chain[0]] not in PRODUCTS:
        value = max(steps.arguments(chain[0]), key=lambda value: math.prod(steps.window(value).shape), default=None)
        writer = None if value is None else steps.only_writer(value)
        if steps.graph.ops.target[chain[0]] not in ROW_BY_ROW or writer is None:
            return []
        chain.insert(0, writer)
    return chain


def _forward(steps: Steps, chain: Sequence[OpId]) -> tuple[tuple[OpId, ...], tuple[OpId, ...]]:
    """(what takes rows of what is as large as logits, products of that)."""
    row_ops = dict.fromkeys(chain)
    products: dict[OpId, None] = {}
    large = {steps.buffer(steps.result(op)) for op in chain}
    for op in range(chain[0] + 1, len(steps.graph.ops)):
        target = steps.graph.ops.target[op]
        reads = {steps.buffer(value) for value in steps.graph.ops.reads[op]}
        if not reads & large or op in row_ops:
            continue
        if target in PRODUCTS:
            products[OpId(op)] = None
        elif target in ROW_BY_ROW and steps.only_writer(steps.result(OpId(op))) == op:
            row_ops[OpId(op)] = None
            large.add(steps.buffer(steps.result(OpId(op))))
    return tuple(sorted(row_ops)), tuple(products)
