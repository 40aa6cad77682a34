"""A program may touch of an input what it was given: what lies beside that in the caller's storage, no plan has.

An input may be a window on a larger storage, and ``as_strided`` reads around it. A run copies the input's elements, so
that such a program would read zeros, and a write would not reach the caller. Inputs that span their storage, as nearly
all do, are not looked at; of storages beyond ``EXACT_BYTES`` the byte ranges are compared, of others every byte.
"""

from collections.abc import Callable, Iterator, Sequence
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
    windows_of = {
        buffer: values
        for buffer, values in _inputs_by_buffer(graph).items()
        if not any(_spans(graph, value) for value in values)
    }
    shown = {buffer: _elements_shown(graph, buffer, values) for buffer, values in windows_of.items()}
    for op, value in _named_values(program) if shown else ():
        buffer = graph.values.buffer[value]
        if buffer in shown and value not in graph.inputs and not shown[buffer](value):
            raise _refusal(graph, op, graph.notes.buffers[buffer])


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


def _elements_shown(graph: Graph, buffer: int, values: Sequence[int]) -> Callable[[int], bool]:
    """Whether a value on the buffer has no element that none of ``values`` has; of a large buffer, by ranges."""
    size = graph.buffers.bytes[buffer]
    if size > EXACT_BYTES:
        ranges = [_range(graph, value) for value in values]
        return lambda value: any(
            low <= _range(graph, value)[0] <= _range(graph, value)[1] <= high for low, high in ranges
        )
    marks: npt.NDArray[np.bool_] = np.zeros(size, dtype=np.bool_)
    for value in values:
        marks[_bytes_of(graph, value)] = True
    return lambda value: bool(marks[_bytes_of(graph, value)].all())


def _bytes_of(graph: Graph, value: int) -> npt.NDArray[np.int64]:
    """The bytes of its buffer that a value consists of."""
    values, width = graph.values, DTYPE_BYTES[graph.values.dtype[value]]
    places = np.full(1, values.offset[value], dtype=np.int64)
    for length, stride in zip(values.shape[value], values.stride[value], strict=True):
        steps = np.arange(length if stride else min(length, 1), dtype=np.int64) * (stride * width)
        places = (places[:, None] + steps).reshape(-1)
    return (places[:, None] + np.arange(width)).reshape(-1)
