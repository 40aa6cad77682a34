"""Calls whose results have the sizes that values decide: run on their own, since nobody can record beyond them."""

from math import prod
from typing import Any, Final

import torch

from tmmu.errors import InvalidRequest, QuotaExceeded
from tmmu.server.graphs.call_forms import OperatorCall
from tmmu.server.graphs.checked_graph import dtype_named, refusal_of, require_window
from tmmu.server.graphs.graph_limits import GraphLimits
from tmmu.wire.graph import ContentWindow, RecordedGraph
from tmmu.wire.graph_operators import SIZED_OPERATORS, is_in

_FIX: Final = "use a client of this version"
_SMALLER: Final = "use smaller tensors"
_INDEX: Final = frozenset({"index"})
_SPREAD: Final = frozenset({"masked_select"})
_INDEX_BYTES: Final = 8
_MOST_RESULTS: Final = 3
"""Of ``unique``: values, where they came from, counts."""


def require_sized_call(body: RecordedGraph, call: OperatorCall, limits: GraphLimits) -> None:
    """``INVALID_REQUEST`` for a body that is no single call of such an operator on its inputs."""
    if not is_in(str(call.operator), SIZED_OPERATORS) or call.written or call.is_random:
        raise InvalidRequest(f"{call.operator} has no results sized by values", fix=_FIX)
    if len(body.calls) != 1 or body.results or body.outputs or body.calls[0].results or body.calls[0].form:
        raise InvalidRequest("a sized call is one call, whose results are not known", fix=_FIX)
    for window in body.windows:
        if window.content >= len(body.inputs):
            raise InvalidRequest(f"no content {window.content}", fix=_FIX)
        require_window(window, body.inputs[window.content], limits.window_elements)
    numbers = body.calls[0].tensors
    if len(numbers) != call.tensors or max(numbers, default=0) >= len(body.windows):
        raise InvalidRequest(f"{call.operator} of {len(numbers)} tensors, not {call.tensors}", fix=_FIX)
    elements = _elements(body, call)
    if elements > limits.window_elements:
        raise QuotaExceeded(f"{call.operator} of {elements} elements, of {limits.window_elements}", fix=_SMALLER)


def most_bytes(body: RecordedGraph, call: OperatorCall) -> int:
    """No results of such a call take more: an index for each axis of each element, or the elements, thrice."""
    windows = [body.windows[number] for number in body.calls[0].tensors]
    axes = max(len(window.shape) for window in windows)
    width = max(_INDEX_BYTES * max(axes, 1), *(dtype_named(window.dtype).itemsize for window in windows))
    return _MOST_RESULTS * _elements(body, call) * width


def _elements(body: RecordedGraph, call: OperatorCall) -> int:
    """What such a call looks at: a mask and what it selects from are spread over each other."""
    windows = [body.windows[number] for number in body.calls[0].tensors]
    arguments = call.named_arguments(windows.__getitem__)
    if is_in(str(call.operator), _INDEX):
        _require_mask(arguments["self"], arguments["indices"])
    if is_in(str(call.operator), _SPREAD):
        try:
            return prod(torch.broadcast_shapes(*(window.shape for window in windows)))  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            raise refusal_of(call.operator, error) from error
    return max((prod(window.shape) for window in windows), default=0)


def _require_mask(source: Any, indices: Any) -> None:
    """One mask alone: with others beside it, more elements may come out than went in."""
    mask = indices[0] if isinstance(indices, list) and len(indices) == 1 else None
    if not isinstance(source, ContentWindow) or not isinstance(mask, ContentWindow):
        raise InvalidRequest("an index that is no mask of a tensor", fix=_FIX)
    if mask.dtype != "bool" or source.shape[: len(mask.shape)] != mask.shape:
        raise InvalidRequest("a mask among other indices", fix="index by the mask alone, or by mask.nonzero()")
