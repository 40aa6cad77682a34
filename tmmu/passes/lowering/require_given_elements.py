"""A program may touch of an input what it was given: what lies beside that in the caller's storage, no plan has.

An input may be a window on a larger storage, and ``as_strided`` reads around it. A run copies the input's elements, so
that such a program would read zeros, and a write would not reach the caller. Inputs that span their storage, as nearly
all do, are not looked at; of storages beyond ``EXACT_BYTES`` the byte ranges are compared, of others every byte.
"""

from collections.abc import Iterable, Iterator
from math import prod
from typing import Final

import numpy as np
import numpy.typing as npt

from tmmu.errors import UnsupportedOp
from tmmu.ir.graph import DTYPE_BYTES, Graph
from tmmu.ir.program import Program

EXACT_BYTES: Final = 1 << 22


def require_given_elements(program: Program) -> None:
    """``UNSUPPORTED_OP`` for a call or a result that has elements beside an input's own, with its line."""
    graph = program.graph
    given = {
        buffer: _marked(graph, buffer, values)
        for buffer, values in _inputs_by_buffer(graph).items()
        if not any(_spans(graph, value) for value in values)
    }
    if not given:
        return
    for op, value in _named_values(program):
        marks = given.get(graph.values.buffer[value])
        if marks is not None and value not in graph.inputs and not marks[_bytes_of(graph, value, len(marks))].all():
            raise _refusal(graph, op, graph.notes.buffers[graph.values.buffer[value]])


def _named_values(program: Program) -> Iterator[tuple[int, int]]:
    """(op, value) for each tensor among the arguments of a call; op -1 for what is returned."""
    for op, call in enumerate(program.calls):
        for ref in call.refs():
            yield op, ref.value
    for value in program.graph.outputs:
        yield -1, value


def _refusal(graph: Graph, op: int, name: str) -> UnsupportedOp:
    source = graph.notes.ops.source[op] if op >= 0 else ""
    subject = graph.ops.target[op] if op >= 0 else "a result"
    return UnsupportedOp(
        f"{source + ': ' if source else ''}{subject} reaches beyond what {name} shows of its storage",
        fix="give the model a clone of that input, or the whole of it",
        **({"where": source} if source else {}),
    )


def _inputs_by_buffer(graph: Graph) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for value in graph.inputs:
        found.setdefault(graph.values.buffer[value], []).append(value)
    return found


def _spans(graph: Graph, value: int) -> bool:
    """Whether the value is dense and as large as its storage."""
    low, high = _range(graph, value)
    dense = prod(graph.values.shape[value]) * DTYPE_BYTES[graph.values.dtype[value]]
    return low == 0 and high == dense == graph.buffers.bytes[graph.values.buffer[value]]


def _range(graph: Graph, value: int) -> tuple[int, int]:
    """The bytes that a value spans, half-open, gaps included."""
    values, low = graph.values, graph.values.offset[value]
    axes = list(zip(values.shape[value], values.stride[value], strict=True))
    if not all(size for size, _ in axes):
        return low, low
    return low, low + (sum((size - 1) * stride for size, stride in axes) + 1) * DTYPE_BYTES[values.dtype[value]]


def _marked(graph: Graph, buffer: int, values: Iterable[int]) -> npt.NDArray[np.bool_]:
    """``bool[bytes]``: what the inputs show of the buffer."""
    marks = np.zeros(graph.buffers.bytes[buffer], dtype=np.bool_)
    for value in values:
        marks[_bytes_of(graph, value, len(marks))] = True
    return marks


def _bytes_of(graph: Graph, value: int, size: int) -> npt.NDArray[np.int64] | slice:
    """The bytes of its buffer, of that size, that a value consists of."""
    if size > EXACT_BYTES:
        return slice(*_range(graph, value))
    values, width = graph.values, DTYPE_BYTES[graph.values.dtype[value]]
    places = np.full(1, values.offset[value], dtype=np.int64)
    for length, stride in zip(values.shape[value], values.stride[value], strict=True):
        steps = np.arange(length if stride else min(length, 1), dtype=np.int64) * (stride * width)
        places = (places[:, None] + steps).reshape(-1)
    return (places[:, None] + np.arange(width)).reshape(-1)
