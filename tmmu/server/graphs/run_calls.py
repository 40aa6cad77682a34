"""A checked graph run call by call: each operator once, on windows of contents, results freed after their last use."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from tmmu.errors import DeviceMemory, InvalidRequest, UnsupportedOp
from tmmu.passes.capture.record.graph_builder import flatten
from tmmu.runtime.memory.slab import Slab
from tmmu.server.graphs.call_forms import OperatorCall
from tmmu.server.graphs.checked_graph import CheckedGraph, dtype_named, refusal_of
from tmmu.server.graphs.contents import view_window
from tmmu.torch_private import cpp_address
from tmmu.wire.graph import NO_CONTENT, ContentWindow


def run_calls(
    checked: CheckedGraph,
    inputs: Sequence[Slab],
    before_call: Callable[[], None],
    draw: Callable[[], AbstractContextManager[None]],
) -> Mapping[int, torch.Tensor]:
    """The outputs by content, each alone on its storage. Inputs are changed in place.

    ``before_call`` may raise; a call that draws does so in a block of ``draw``. ``INVALID_REQUEST`` for what an
    operator refuses; what it changed until then is changed.
    """
    graph = checked.graph
    slabs: dict[int, Slab] = dict(enumerate(inputs))
    results: dict[int, torch.Tensor] = {}
    for row in checked.calls:
        before_call()
        tensors = [view_window(slabs[graph.windows[number].content], graph.windows[number]) for number in row.tensors]
        with draw() if row.call.is_random else nullcontext():
            leaves = call_operator(row.call, tensors)
        for leaf, number in zip(leaves, row.results, strict=True):
            if number != NO_CONTENT:
                window = graph.windows[number]
                result = results[window.content] = _as_stated(row.call, leaf, tensors, window)
                slabs[window.content] = Slab.over(result)
        for content in row.dying:
            del slabs[content], results[content]
    return results


def call_operator(call: OperatorCall, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """The leaves of what the operator returns."""
    try:
        with torch.no_grad():
            result = call.compute(tensors)
    except RuntimeError as error:
        if "allocate memory" in str(error):
            raise DeviceMemory(f"{call.operator} gets no memory for its result", fix="use smaller tensors") from error
        raise refusal_of(call.operator, error) from error
    except Exception as error:
        raise refusal_of(call.operator, error) from error
    return [leaf if isinstance(leaf, torch.Tensor) else None for leaf in flatten(result)]


def own_storage(tensor: torch.Tensor, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The tensor alone on a storage that is exactly its own: itself, or a copy of the same strides."""
    storage = tensor.untyped_storage()
    is_shared = cpp_address(storage) in {cpp_address(argument.untyped_storage()) for argument in tensors}
    if not is_shared and tensor.storage_offset() == 0 and storage.nbytes() == tensor.numel() * tensor.element_size():
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)


def _as_stated(
    call: OperatorCall, leaf: torch.Tensor | None, tensors: Sequence[torch.Tensor], window: ContentWindow
) -> torch.Tensor:
    """The result; ``UNSUPPORTED_OP`` where the real kernel lays it out otherwise than the fake one said."""
    if leaf is None:
        raise InvalidRequest(f"{call.operator} returned no tensor", fix="run it on the cpu")
    stated = (window.shape, window.stride, dtype_named(window.dtype))
    if (tuple(leaf.shape), leaf.stride(), leaf.dtype) != stated:
        raise UnsupportedOp(
            f"{call.operator} makes {leaf.dtype} of strides {leaf.stride()}, and {window.dtype} of {window.stride} was "
            "recorded",
            fix="run it on the cpu",
        )
    return own_storage(leaf, tensors)
