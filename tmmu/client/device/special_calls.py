"""Calls on remote tensors with a meaning of their own: looks at values, copies to and from here, views in place."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch

from tmmu.client.device.device_operators import VIEWS_IN_PLACE
from tmmu.client.device.operator_classes import OperatorClass
from tmmu.client.device.remote_tensor import DEVICE_NAME, RemoteTensor
from tmmu.client.device.result_forms import spans_storage
from tmmu.errors import UnsupportedOp
from tmmu.torch_private import DisableTorchDispatch, OpOverload

if TYPE_CHECKING:
    from tmmu.client.device.dispatch import CallDispatcher

_aten: Final = torch.ops.aten
CallHandler: TypeAlias = "Callable[[CallDispatcher, OpOverload, tuple[Any, ...], dict[str, Any]], Any]"


def _item(calls: "CallDispatcher", operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    del operator, kwargs
    calls.recorder.counts.calls[OperatorClass.TRIGGER] += 1
    return calls.fetch(args[0]).item()


def _equal_tensors(
    calls: "CallDispatcher", operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Whether two tensors have equal elements: the server compares, and one value comes back."""
    del operator, kwargs
    a, b = args
    if a.shape != b.shape:
        return False
    return bool(calls.dispatch(_aten.eq.Tensor, (a, b), {}).all().item())


def _lift(calls: "CallDispatcher", operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    del calls, operator, kwargs
    return args[0]


def _move(calls: "CallDispatcher", operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A view in place: the tensor is another window on its storage from now on."""
    tensor = args[0]
    view = calls.record(VIEWS_IN_PLACE[operator], args, kwargs)
    with DisableTorchDispatch():
        tensor.as_strided_(view.shape, view.stride(), view.storage_offset())
    return tensor


def _copy_to(calls: "CallDispatcher", operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``to`` of a remote tensor: recorded where it stays, fetched where it goes to the cpu."""
    tensor, device = args[0], kwargs.get("device")
    if not isinstance(tensor, RemoteTensor):
        raise UnsupportedOp(f"{operator} of a tensor on {tensor.device}", fix="move it to the cpu first")
    if device is None or device.type == DEVICE_NAME:
        return calls.record(operator, args, kwargs)
    if device.type == "meta":
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=kwargs.get("dtype"), device="meta")
    if device.type != "cpu":
        raise UnsupportedOp(f"a remote tensor goes to the cpu, not to {device}", fix="use .cpu() first")
    calls.recorder.counts.calls[OperatorClass.TRIGGER] += 1
    changes = {name: value for name, value in kwargs.items() if name in ("dtype", "memory_format") and value}
    tensor = calls.fetch(tensor)
    return _aten._to_copy.default(tensor, **changes) if changes else tensor


def _copy_into(calls: "CallDispatcher", operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``copy_`` between here and there."""
    del kwargs
    target, source = args[:2]
    if not isinstance(target, RemoteTensor):
        target.copy_(calls.fetch(source))
        return target
    if isinstance(source, RemoteTensor):
        return calls.record(operator, args[:2], {})
    if type(source) not in (torch.Tensor, torch.nn.Parameter) or source.device.type != "cpu":
        raise UnsupportedOp(f"a {type(source).__name__} on {source.device} is not uploaded", fix="use .cpu() first")
    if source.layout is not torch.strided:
        raise UnsupportedOp("a tensor that is not dense is not uploaded", fix="use .to_dense() first")
    if source.shape == target.shape and spans_storage(target):
        laid = torch.empty_strided(target.shape, target.stride(), dtype=target.dtype)
        target.remote_storage.exchange(calls.recorder.upload(laid.copy_(source.detach())))
        return target
    return calls.record(operator, (target, calls.upload(source)), {})


def has_mask_beside_indices(operator: OpOverload, args: tuple[Any, ...]) -> bool:
    """Whether a call indexes by a mask that is not alone: behind a whole axis, or beside other indices."""
    return operator is _aten.index.Tensor and len(args) == 2 and len(args[1]) > 1


def without_masks(
    calls: "CallDispatcher", source: RemoteTensor, indices: list[RemoteTensor | None]
) -> tuple[RemoteTensor, list[RemoteTensor | None]]:
    """The same index with numbers in place of masks, as torch takes a mask; ``IndexError`` where torch has one."""
    numbers: list[RemoteTensor | None] = []
    for position, index in enumerate(indices):
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            numbers.append(index)
            continue
        axes = tuple(source.shape[len(numbers) : len(numbers) + index.dim()])
        if axes != tuple(index.shape):
            raise IndexError(
                f"The shape of the mask {list(index.shape)} at index {position} does not match the shape of the "
                f"indexed tensor {list(source.shape)}"
            )
        rows = calls.dispatch(_aten.nonzero.default, (index,), {})
        numbers += calls.dispatch(_aten.unbind.int, (rows, 1), {})
    return source, numbers


SPECIAL_CALLS: Final[Mapping[OpOverload, CallHandler]] = {
    _aten._local_scalar_dense.default: _item,
    _aten.equal.default: _equal_tensors,
    _aten.lift_fresh.default: _lift,
    _aten._to_copy.default: _copy_to,
    _aten.copy_.default: _copy_into,
    **dict.fromkeys(VIEWS_IN_PLACE, _move),
}
