"""A graph at any size, from graphs at a few sizes: every number that varies is a polynomial of the size.

Through ``k`` sizes goes one polynomial of degree ``k - 1`` for each number: dimensions, strides, offsets, bytes, FLOPs
and the integers of calls. What is no number has to be the same in all of them: operators, operands, buffers of windows,
roles. What is predicted is exact where the model is polynomial of that degree, and nothing here proves that it is: a
trace at the predicted size does (``same_memory``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, TypeAlias

from tmmu.ir.call_text import CallText, decode_call, encode_call
from tmmu.ir.graph import Graph, OpCalls
from tmmu.ir.ids import Bytes
from tmmu.ir.lifetimes import EagerRun, Lifetimes

Cell: TypeAlias = Any
"""An integer, a text, bytes, a truth value, ``None``, or a tuple or list of cells."""


class NotPolynomialError(Exception):
    """The graphs differ in more than numbers, or no polynomial of whole numbers goes through them."""


@dataclass(frozen=True, slots=True)
class SizeModel:
    """Legal graphs with the sizes at which they were traced, each size once."""

    traces: tuple[tuple[int, Graph], ...]

    def graph_at(self, size: int) -> Graph:
        """The graph at a size, without eager's lifetimes; ``NotPolynomialError`` where there is none.

        Numbers of calls that are not whole, such as one over a count, and number inputs are those of the last trace:
        the graph is there to be planned, not to be run. O(size of the graph).
        """
        numbers = _Numbers(tuple(traced for traced, _ in self.traces), size)
        graphs = [graph for _, graph in self.traces]
        first, last = graphs[0], graphs[-1]
        numbers.require_same([_structure(graph) for graph in graphs])
        values = replace(
            first.values,
            offset=numbers.blend([graph.values.offset for graph in graphs]),
            shape=numbers.blend([graph.values.shape for graph in graphs]),
            stride=numbers.blend([graph.values.stride for graph in graphs]),
        )
        flops = numbers.blend([graph.notes.ops.flops for graph in graphs])
        return replace(
            first,
            buffers=replace(first.buffers, bytes=numbers.blend([graph.buffers.bytes for graph in graphs])),
            values=values,
            notes=replace(last.notes, eager=None, ops=replace(last.notes.ops, flops=flops)),
            calls=_calls(graphs, numbers),
        )

    def eager_at(self, size: int) -> EagerRun | None:
        """The step at a size as eager runs it, ``None`` where no trace says that; ``NotPolynomialError`` as above."""
        runs = [graph.notes.eager for _, graph in self.traces]
        known = [run for run in runs if run is not None]
        if not known:
            return None
        numbers = _Numbers(tuple(traced for traced, _ in self.traces), size)
        numbers.require_same([_eager_structure(run) for run in runs])
        first = known[0]
        return replace(
            first,
            persistent_bytes=numbers.blend([run.persistent_bytes for run in known]),
            storages=_storages(numbers, [run.storages for run in known]),
            host=_storages(numbers, [run.host for run in known]),
        )


def number_at(size: int, *points: tuple[int, int]) -> int:
    """A number at a size, from (size, number) of a few; ``NotPolynomialError`` where it is not whole or below zero."""
    found: int = _Numbers(tuple(at for at, _ in points), size).blend(tuple(number for _, number in points))
    return found


def same_memory(first: Graph, second: Graph) -> bool:
    """Whether two graphs have the same ops on the same windows of the same buffers, byte for byte."""
    return _structure(first) == _structure(second) and (first.buffers, first.values) == (second.buffers, second.values)


def _structure(graph: Graph) -> tuple[Cell, ...]:
    """What no size may change."""
    values, effects = graph.values, None if graph.calls is None else graph.calls.effect
    return (
        graph.target, graph.buffers.role, values.buffer, values.dtype, graph.ops, graph.inputs, graph.outputs, effects
    )  # fmt: skip


def _eager_structure(run: EagerRun | None) -> EagerRun | None:
    """What no size may change."""
    if run is None:
        return None
    storages, host = (replace(table, bytes=()) for table in (run.storages, run.host))
    return replace(run, persistent_bytes=Bytes(0), storages=storages, host=host)


def _storages(numbers: "_Numbers", tables: Sequence[Lifetimes]) -> Lifetimes:
    return replace(tables[0], bytes=numbers.blend([table.bytes for table in tables]))


@dataclass(slots=True)
class _Numbers:
    """The polynomials through some sizes, at one size; equal rows are looked up."""

    sizes: tuple[int, ...]
    at: int
    known: dict[tuple[Cell, ...], Cell]

    def __init__(self, sizes: tuple[int, ...], at: int) -> None:
        self.sizes, self.at, self.known = sizes, at, {}

    def require_same(self, cells: Sequence[Cell]) -> None:
        """``NotPolynomialError`` where one differs from the first."""
        if any(cell != cells[0] for cell in cells):
            raise NotPolynomialError

    def blend(self, cells: Sequence[Cell]) -> Cell:
        """The cell at this size, from one of each trace."""
        first = cells[0]
        if all(cell == first and type(cell) is type(first) for cell in cells):
            return first
        if all(type(cell) is int for cell in cells):
            return self._look_up(tuple(cells), self._number)
        if all(isinstance(cell, bytes) for cell in cells):
            return cells[-1]
        if isinstance(first, (tuple, list)) and all(isinstance(c, type(first)) and len(c) == len(first) for c in cells):
            return type(first)(self.blend(column) for column in zip(*cells, strict=True))
        raise NotPolynomialError

    def text(self, texts: tuple[bytes, ...]) -> bytes:
        """A call's text at this size."""
        return self._look_up(texts, self._text)  # type: ignore[no-any-return]

    def _look_up(self, cells: tuple[Cell, ...], make: Any) -> Cell:
        found = self.known.get(cells)
        if found is None:
            found = self.known[cells] = make(cells)
        return found

    def _number(self, cells: tuple[int, ...]) -> int:
        """By Lagrange's formula, exactly; what is nowhere below zero in the traces is not here either."""
        total = Fraction(0)
        for place, (size, cell) in enumerate(zip(self.sizes, cells, strict=True)):
            share = Fraction(cell)
            for other in (*self.sizes[:place], *self.sizes[place + 1 :]):
                share *= Fraction(self.at - other, size - other)
            total += share
        if total.denominator != 1 or (total < 0 <= min(cells)):
            raise NotPolynomialError
        return int(total)

    def _text(self, texts: tuple[bytes, ...]) -> bytes:
        calls = [decode_call(text) for text in texts]
        parts = [(c.operator, c.arguments, c.results, c.switches) for c in calls if c is not None]
        operator, arguments, results, switches = self.blend(parts)
        return encode_call(CallText(operator=operator, arguments=arguments, results=results, switches=switches))


def _calls(graphs: Sequence[Graph], numbers: _Numbers) -> OpCalls | None:
    columns = [graph.calls for graph in graphs if graph.calls is not None]
    if len(columns) < len(graphs):
        return None
    numbers.require_same([calls.operands for calls in columns])
    rows: dict[bytes, int] = {}
    found = []
    for row in zip(*(calls.call for calls in columns), strict=True):
        text = numbers.text(tuple(calls.texts[place] for calls, place in zip(columns, row, strict=True)))
        found.append(rows.setdefault(text, len(rows)))
    return replace(columns[-1], texts=tuple(rows), call=tuple(found))
