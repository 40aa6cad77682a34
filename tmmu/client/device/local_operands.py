"""Calls that mix local and remote operands: the side that costs less to move is moved, and counted."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol

import torch

from tmmu.client.device.device_counts import DeviceCounts
from tmmu.client.device.operator_classes import OperatorClass, class_of
from tmmu.client.device.remote_tensor import RemoteTensor
from tmmu.client.interlock import FreeBytes, host_free_bytes, require_local_room
from tmmu.errors import UnsupportedOp
from tmmu.passes.operators.schema import written_arguments
from tmmu.torch_private import OpOverload
from tmmu.wire.graph_operators import packet_name

_LIKE: Final = frozenset(
    {"empty_like", "full_like", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros", "ones_like"}
    | {"rand_like", "randint_like", "randn_like", "zeros_like"}
)
"""Operators that look at the form of a tensor alone."""


_LEAST_LOCKED: Final = 1 << 20
"""Bytes of a call below which no machine swaps, and nobody looks what is free."""


class TensorMover(Protocol):
    """What moves tensors, and records calls on those that were moved."""

    def call(self, operator: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What the operator returns for remote tensors."""

    def upload(self, tensor: torch.Tensor) -> RemoteTensor:
        """A remote copy."""

    def fetch(self, tensor: RemoteTensor) -> torch.Tensor:
        """A local copy."""


class LocalOperands:
    """Operands are uploaded where that is fewer bytes than to fetch the remote ones, where the call writes a remote
    one, and for reductions, whose results are small; else the call runs here.
    """

    def __init__(self, mover: TensorMover, counts: DeviceCounts, free_bytes: FreeBytes = host_free_bytes) -> None:
        self._mover, self._counts, self._free_bytes = mover, counts, free_bytes

    def call(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a call on local and remote tensors returns; ``UNSUPPORTED_OP`` for one that is on a third device."""
        tensors = list(tensors_in((args, kwargs)))
        local = [tensor for tensor in tensors if not isinstance(tensor, RemoteTensor)]
        for tensor in local:
            if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.device.type != "cpu":
                raise UnsupportedOp(
                    f"{operator} of a remote tensor and a {type(tensor).__name__} on {tensor.device}",
                    fix="move one to the other's device",
                )
        remote = [tensor for tensor in tensors if isinstance(tensor, RemoteTensor)]
        written = list(tensors_in(written_arguments(operator, args, kwargs)))
        writes_here = any(not isinstance(tensor, RemoteTensor) for tensor in written)
        uploads = class_of(operator) is OperatorClass.REDUCTION or _bytes(local) <= _bytes(remote) or bool(written)
        if uploads and not writes_here:
            self._counts.moved += 1
            moved = map_tensors((args, kwargs), lambda t: t if isinstance(t, RemoteTensor) else self._mover.upload(t))
            return self._mover.call(operator, *moved)
        if any(isinstance(tensor, RemoteTensor) for tensor in written):
            raise UnsupportedOp(f"{operator} writes a local and a remote tensor", fix="move one to the other's device")
        return self.call_here(operator, args, kwargs)

    def call_here(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a call returns here, on remote operands that are fetched; ``DEVICE_MEMORY`` by the interlock."""
        needed = _bytes([t for t in tensors_in((args, kwargs)) if isinstance(t, RemoteTensor)])
        needed += _result_bytes(operator, args, kwargs)
        if needed >= _LEAST_LOCKED:
            require_local_room(needed, self._free_bytes, fix="move all operands to the device, or free memory")
        self._counts.materialized += 1
        args, kwargs = map_tensors((args, kwargs), lambda t: self._mover.fetch(t) if isinstance(t, RemoteTensor) else t)
        return operator(*args, **kwargs)

    def like(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        """A tensor on another device in the form of a remote one, whose values nobody needs for that."""
        if packet_name(str(operator)) not in _LIKE:
            raise UnsupportedOp(
                f"{operator} of a remote tensor makes a tensor on {kwargs['device']}", fix="use .cpu() first"
            )
        args, kwargs = map_tensors((args, kwargs), _stand_in)
        result: torch.Tensor = operator(*args, **kwargs)
        return result


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested tuples, lists and dicts, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        yield from tensors_in(tuple(value.values()))


def map_tensors(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same tuples, lists and dicts with another object in place of each tensor."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (tuple, list)):
        return type(value)([map_tensors(item, change) for item in value])
    if isinstance(value, dict):
        return {name: map_tensors(item, change) for name, item in value.items()}
    return value


def _bytes(tensors: list[Any]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _result_bytes(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Bytes of what a call returns; 0 where values decide that, and no plan knows it."""
    try:
        args, kwargs = map_tensors(
            (args, kwargs), lambda t: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")
        )
        return _bytes(list(tensors_in(operator(*args, **kwargs))))
    except (RuntimeError, NotImplementedError):
        return 0


def _stand_in(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
