"""Which results an elementwise op could compute in the very bytes of an argument."""

from collections.abc import Sequence
from typing import cast

from tmmu.ir.edit import with_columns
from tmmu.ir.graph import DTYPE_BYTES, PERSISTENT_ROLES, Graph, Overwrite
from tmmu.ir.ids import ValueId
from tmmu.ir.program import Program
from tmmu.ir.windows import same_window
from tmmu.passes.capture.program import Window
from tmmu.passes.operators.table import facts_of


def mark_overwrites(program: Program) -> Program:
    """Per elementwise op that makes new buffers, the (written, read) pairs that may share their bytes.

    A pair has one dtype, shape and stride, is dense, and each of its values spans its buffer. An argument on a
    persistent buffer is never overwritten, nor one whose buffer the op reads through another window too.
    """
    graph = program.graph
    first_writer = _first_writers(graph)
    columns = [
        _pairs(graph, op, cast("tuple[ValueId | None, ...]", program.calls[op].results))
        if facts_of(target).elementwise and _makes_all(graph, op, first_writer)
        else ()
        for op, target in enumerate(graph.ops.target)
    ]
    return with_columns(program, overwrites=tuple(columns))


def _first_writers(graph: Graph) -> dict[int, int]:
    """Per buffer that ops make, the op that does."""
    first: dict[int, int] = {}
    for op, writes in enumerate(graph.ops.writes):
        for value in writes:
            first.setdefault(graph.values.buffer[value], op)
    return first


def _makes_all(graph: Graph, op: int, first_writer: dict[int, int]) -> bool:
    """Whether the op changes no buffer that was there before it."""
    buffers = {graph.values.buffer[value] for value in graph.ops.writes[op]}
    return all(first_writer[buffer] == op and graph.buffers.role[buffer] not in PERSISTENT_ROLES for buffer in buffers)


def _pairs(graph: Graph, op: int, results: Sequence[ValueId | None]) -> tuple[Overwrite, ...]:
    buffer, role, reads = graph.values.buffer, graph.buffers.role, graph.ops.reads[op]
    return tuple(
        (written, read)
        for written in dict.fromkeys(results)
        if written is not None and _spans_buffer(graph, written)
        for read in reads
        if _same_form(graph, written, read)
        and role[buffer[read]] not in PERSISTENT_ROLES
        and buffer[read] != buffer[written]
        and _spans_buffer(graph, read)
        and all(same_window(graph, reader, read) for reader in reads if buffer[reader] == buffer[read])
    )


def _same_form(graph: Graph, written: int, read: int) -> bool:
    values = graph.values
    return all(column[written] == column[read] for column in (values.shape, values.stride, values.dtype))


def _spans_buffer(graph: Graph, value: int) -> bool:
    values = graph.values
    window = Window(
        values.buffer[value], values.offset[value], values.shape[value], values.stride[value], values.dtype[value]
    )
    return spans_storage(window, graph.buffers.bytes[values.buffer[value]])


def spans_storage(window: Window, size: int) -> bool:
    """Whether the window is dense, without overlap or gaps, and covers all ``size`` bytes from 0."""
    count = 1
    axes = sorted((step, length) for length, step in zip(window.shape, window.stride, strict=True) if length != 1)
    for step, length in axes:
        if step != count:
            return False
        count *= length
    return window.offset == 0 and count * DTYPE_BYTES[window.dtype] == size
