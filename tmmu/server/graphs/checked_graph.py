"""Legal graphs: every rule is checked from the graph alone, before a byte is allocated for it.

Legal: each window lies inside its content, aligned, of an allowed dtype, and shows no more elements than a limit; a
call reads contents that are there, by an allowed operator, with arguments of its schema; what it makes has the form
that the graph says, as fake kernels find it; the most bytes that are live at once are then known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import torch

from tmmu.errors import InvalidRequest, QuotaExceeded
from tmmu.passes.shapes.inference import ShapeInference, ShapesDecidedByValues, TensorGeometry
from tmmu.runtime.memory.allocated import reach_bytes
from tmmu.server.graphs.call_forms import OperatorCall
from tmmu.server.graphs.graph_limits import GraphLimits
from tmmu.server.graphs.operator_rules import kernel_bytes, multiply_adds, require_sizes
from tmmu.wire.graph import NO_CONTENT, ContentWindow, RecordedGraph
from tmmu.wire.graph_operators import GRAPH_DTYPES

_FIX: Final = "use a client of this version"
_BOOLEAN: Final = "bool"
_REFUSALS: Final = (RuntimeError, ValueError, TypeError, AttributeError, AssertionError, LookupError, ArithmeticError)
"""What torch raises for arguments that an operator does not take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedCall:
    """A legal call: windows by number, ``dying`` are contents that nothing reads later and nobody keeps."""

    call: OperatorCall
    tensors: tuple[int, ...]
    results: tuple[int, ...]
    dying: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedGraph:
    """A legal graph. ``peak``: most bytes live at once of what it makes, kernels' own included.

    ``scratch``: most bytes that one kernel allocates beside its results, which a plan does not hold.
    ``masks``: inputs that it reads as booleans, so that no byte of them may be more than 1. ``numbers``: inputs that it
    writes as anything else.
    """

    hash: bytes
    graph: RecordedGraph
    calls: tuple[CheckedCall, ...]
    peak: int
    is_random: bool
    scratch: int
    masks: tuple[int, ...]
    numbers: tuple[int, ...]

    @property
    def bytes(self) -> tuple[int, ...]:
        """Of each content."""
        return (*self.graph.inputs, *self.graph.results)


def dtype_named(name: str) -> torch.dtype:
    """The dtype of a window; ``INVALID_REQUEST`` for one that is not allowed."""
    if name not in GRAPH_DTYPES:
        raise InvalidRequest(f"no dtype {name:.40}", fix=_FIX)
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def require_window(window: ContentWindow, size: int, most_elements: int) -> None:
    """``INVALID_REQUEST`` for a window that does not lie in a content of ``size`` bytes."""
    width = dtype_named(window.dtype).itemsize
    if len(window.shape) != len(window.stride):
        raise InvalidRequest("a window whose strides are not as many as its sizes", fix=_FIX)
    elements = prod(window.shape)
    if elements > most_elements:
        raise QuotaExceeded(f"a window of {elements} elements, of {most_elements}", fix="use smaller tensors")
    if window.offset * width + reach_bytes(window.shape, window.stride, width) > size:
        raise InvalidRequest(f"a window ends behind a content of {size} bytes", fix=_FIX)


def check_graph(
    name: bytes,
    graph: RecordedGraph,
    forms: Mapping[bytes, OperatorCall],
    inference: ShapeInference,
    limits: GraphLimits,
) -> CheckedGraph:
    """The graph with its calls in torch's terms. ``INVALID_REQUEST``, ``UNSUPPORTED_OP`` or ``QUOTA_EXCEEDED``."""
    return _Check(graph, forms, inference, limits).run(name)


class _Check:
    """One check under way: which contents are there, and by call the bytes that its kernel allocates."""

    def __init__(
        self,
        graph: RecordedGraph,
        forms: Mapping[bytes, OperatorCall],
        inference: ShapeInference,
        limits: GraphLimits,
    ) -> None:
        self._graph, self._forms, self._inference, self._limits = graph, forms, inference, limits
        self._bytes = (*graph.inputs, *graph.results)
        self._there = set(range(len(graph.inputs)))
        self._beside: dict[int, int] = {}

    def run(self, name: bytes) -> CheckedGraph:
        graph = self._graph
        for window in graph.windows:
            if window.content >= len(self._bytes):
                raise InvalidRequest(f"no content {window.content}", fix=_FIX)
            require_window(window, self._bytes[window.content], self._limits.window_elements)
        calls = [self._check_call(position) for position in range(len(graph.calls))]
        if len(self._there) < len(self._bytes):
            raise InvalidRequest("a content that no call makes", fix=_FIX)
        if len(set(graph.outputs)) < len(graph.outputs) or not set(graph.outputs) <= set(
            range(len(graph.inputs), len(self._bytes))
        ):
            raise InvalidRequest("outputs are not results, each once", fix=_FIX)
        dying = self._last_uses()
        numbers = self._written_numbers(calls)
        booleans = {window.content for window in graph.windows if window.dtype == _BOOLEAN}
        self._require_booleans(booleans, numbers)
        return CheckedGraph(
            hash=name,
            graph=graph,
            calls=tuple(
                CheckedCall(call=call, tensors=row.tensors, results=row.results, dying=dying[position])
                for position, (call, row) in enumerate(zip(calls, graph.calls, strict=True))
            ),
            peak=self._peak(dying),
            scratch=max(self._beside.values(), default=0),
            is_random=any(call.is_random for call in calls),
            masks=tuple(sorted(content for content in booleans if content < len(graph.inputs))),
            numbers=tuple(sorted(content for content in numbers if content < len(graph.inputs))),
        )

    def _check_call(self, position: int) -> OperatorCall:
        row, windows = self._graph.calls[position], self._graph.windows
        if row.form >= len(self._graph.forms) or max((*row.tensors, *row.results), default=0) >= len(windows):
            raise InvalidRequest(f"call {position} names what is not there", fix=_FIX)
        call = self._forms[self._graph.forms[row.form]]
        if len(row.tensors) != call.tensors:
            raise InvalidRequest(f"{call.operator} of {len(row.tensors)} tensors, not {call.tensors}", fix=_FIX)
        if any(windows[number].content not in self._there for number in row.tensors):
            raise InvalidRequest(f"{call.operator} reads what is not made yet", fix=_FIX)
        forms = self._results(call, [windows[number] for number in row.tensors], position)
        if len(forms) != len(row.results):
            raise InvalidRequest(f"{call.operator} returns {len(forms)} tensors, not {len(row.results)}", fix=_FIX)
        for form, number in zip(forms, row.results, strict=True):
            if (form is None or form.storage >= 0) != (number == NO_CONTENT):
                raise InvalidRequest(f"{call.operator} makes other contents than the graph says", fix=_FIX)
            if form is not None and number != NO_CONTENT:
                self._check_result(call, form, windows[number])
        return call

    def _results(
        self, call: OperatorCall, windows: Sequence[ContentWindow], position: int
    ) -> tuple[TensorGeometry | None, ...]:
        """What fake kernels find, within what one call may compute; what it allocates beside is noted."""
        tensors = [self._form(window) for window in windows]
        args, kwargs = call.arguments(tensors.__getitem__)
        try:
            arguments = call.named_arguments(tensors.__getitem__)
            require_sizes(call, arguments)
            results = self._inference.results(call.operator, args, kwargs)
            work = multiply_adds(call, arguments, results)
            if work > self._limits.multiply_adds:
                raise QuotaExceeded(
                    f"{call.operator} of {work} multiply-adds, of {self._limits.multiply_adds}",
                    fix="use smaller tensors, or have call_multiply_adds of the server raised",
                )
            self._beside[position] = kernel_bytes(call, arguments, results)
            return results
        except ShapesDecidedByValues as error:
            raise InvalidRequest(f"{call.operator} is run on its own, as a sized call", fix=_FIX) from error
        except Exception as error:
            raise refusal_of(call.operator, error) from error

    def _form(self, window: ContentWindow) -> TensorGeometry:
        return TensorGeometry(
            storage=window.content,
            storage_bytes=self._bytes[window.content],
            offset=window.offset,
            shape=window.shape,
            stride=window.stride,
            dtype=dtype_named(window.dtype),
        )

    def _check_result(self, call: OperatorCall, form: TensorGeometry, window: ContentWindow) -> None:
        if window.content in self._there:
            raise InvalidRequest(f"{call.operator} makes no new content {window.content}", fix=_FIX)
        stated = (window.offset, window.shape, window.stride, dtype_named(window.dtype))
        inferred = (form.offset, form.shape, form.stride, form.dtype)
        dense = prod(form.shape) * form.dtype.itemsize
        if stated != inferred or not dense == form.storage_bytes == self._bytes[window.content]:
            raise InvalidRequest(f"{call.operator} makes {inferred}, not {stated}", fix=_FIX)
        self._there.add(window.content)

    def _written_numbers(self, calls: Sequence[OperatorCall]) -> set[int]:
        """Contents that are made or written as anything but booleans."""
        windows = self._graph.windows
        rows = zip(calls, self._graph.calls, strict=True)
        numbers = [(*(row.tensors[slot] for slot in call.written), *row.results) for call, row in rows]
        return {
            windows[number].content
            for row in numbers
            for number in row
            if number != NO_CONTENT and windows[number].dtype != _BOOLEAN
        }

    def _require_booleans(self, booleans: set[int], numbers: set[int]) -> None:
        """Kernels trust that a boolean is 0 or 1: what is read as one was never written as anything else."""
        if booleans & numbers:
            raise InvalidRequest("a content is written as numbers, and read as booleans", fix="compare it with 0")

    def _last_uses(self) -> list[tuple[int, ...]]:
        """By call, the results of which it is the last to know, unless that is an output."""
        last: dict[int, int] = {}
        for position, row in enumerate(self._graph.calls):
            for number in (*row.tensors, *(number for number in row.results if number != NO_CONTENT)):
                last[self._graph.windows[number].content] = position
        rows: list[list[int]] = [[] for _ in self._graph.calls]
        for content, position in sorted(last.items()):
            if content >= len(self._graph.inputs) and content not in self._graph.outputs:
                rows[position].append(content)
        return [tuple(row) for row in rows]

    def _peak(self, dying: Sequence[tuple[int, ...]]) -> int:
        """A result that nobody reads is allocated, too, and dies at its own call."""
        live = peak = 0
        for position, (row, ended) in enumerate(zip(self._graph.calls, dying, strict=True)):
            live += sum(
                self._bytes[self._graph.windows[number].content] for number in row.results if number != NO_CONTENT
            )
            peak = max(peak, live + self._beside[position])
            live -= sum(self._bytes[content] for content in ended)
        return peak


def refusal_of(operator: Any, error: Exception) -> Exception:
    """What torch raised for a call, as ``INVALID_REQUEST`` with its first line; any other error as it is."""
    if not isinstance(error, _REFUSALS):
        return error
    line = next(iter(str(error).splitlines()), type(error).__name__)
    return InvalidRequest(f"{operator}: {line:.300}", fix="give the operator what it takes")
