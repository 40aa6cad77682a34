"""Which tensors of a module lie in which buffer of the ring, and where; and putting them there for a while."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tmmu.errors import InvalidConfig
from tmmu.ir.graph import Graph
from tmmu.ir.ring import Ring
from tmmu.runtime.memory.slab import Slab


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedBuffer:
    """A buffer of the ring, and all names of the tensors of the module that lie in it, the graph's ``name`` first."""

    buffer: int
    block: int
    address: int
    size: int
    name: str
    aliases: tuple[str, ...]


def named_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Every parameter and buffer by every name that it has."""
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return dict(named)


def streamed_buffers(ring: Ring, graph: Graph, tensors: Mapping[str, torch.Tensor]) -> list[StreamedBuffer]:
    """Every member of every block; ``INVALID_CONFIG`` for one that the module does not have or cannot move."""
    names, size = graph.notes.buffers, graph.buffers.bytes
    together: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        together.setdefault(tensor.untyped_storage()._cdata, []).append(name)
    found = []
    for index, block in enumerate(ring.blocks):
        for member in block.members:
            name = names[member.buffer]
            if name not in tensors:
                raise InvalidConfig(
                    f"the module has no {name}, which {block.name} of the ring holds",
                    fix="plan the ring for this very module",
                    name=name,
                )
            aliases = together[tensors[name].untyped_storage()._cdata]
            for alias in aliases:
                _require_plain(alias, tensors[alias])
            found.append(
                StreamedBuffer(
                    buffer=member.buffer,
                    block=index,
                    address=block.address + member.offset,
                    size=size[member.buffer],
                    name=name,
                    aliases=(name, *(alias for alias in aliases if alias != name)),
                )
            )
    return found


def _require_plain(name: str, tensor: torch.Tensor) -> None:
    kind = type(tensor.data)
    if kind is not torch.Tensor or tensor.layout is not torch.strided:
        raise InvalidConfig(
            f"{name} is a {type(tensor).__name__} of {kind.__name__}s, and only plain dense tensors stream",
            fix="leave it out of the ring, or unpack the quantized weight into plain tensors",
            name=name,
        )


@contextmanager
def place_tensors(
    module: nn.Module,
    tensors: Mapping[str, torch.Tensor],
    windows: Sequence[StreamedBuffer],
    slab: Slab,
    device: torch.device,
) -> Iterator[None]:
    """While inside, the tensors of each window are views of the slab, and all others are on ``device``."""
    views = {alias: _view(one, tensors, alias, slab) for one in windows for alias in one.aliases}
    with ExitStack() as stack:
        met: dict[int, torch.Tensor] = {}
        for name, tensor in tensors.items():
            if id(tensor) not in met:
                other = views.get(name)
                kept = other is None and tensor.device == device
                met[id(tensor)] = tensor if kept else _there(stack, name, tensor, other, device)
            if met[id(tensor)] is not tensor:
                _exchange(stack, module, name, met[id(tensor)])
        yield


def _there(
    stack: ExitStack, name: str, tensor: torch.Tensor, view: torch.Tensor | None, device: torch.device
) -> torch.Tensor:
    """The tensor itself over other memory until the stack unwinds, or another in its stead where torch forbids that."""
    before = tensor.data
    after = _move_to_device(name, before, device) if view is None else view
    if not torch._has_compatible_shallow_copy_type(tensor, after):
        return nn.Parameter(after, requires_grad=False) if isinstance(tensor, nn.Parameter) else after

    def restore() -> None:
        now, tensor.data = tensor.data, before
        if view is None:
            before.copy_(now)

    tensor.data = after
    stack.callback(restore)
    return tensor


def _exchange(stack: ExitStack, module: nn.Module, name: str, tensor: torch.Tensor) -> None:
    """The module has this tensor under that name until the stack unwinds."""
    path, _, own = name.rpartition(".")
    owner = module.get_submodule(path)
    table: dict[str, Any] = owner._parameters if own in owner._parameters else owner._buffers
    stack.callback(table.__setitem__, own, table[own])
    table[own] = tensor


def _move_to_device(name: str, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    if tensor.device.type == "meta":
        raise InvalidConfig(
            f"{name} has no value, and is not in the ring", fix="make the module with values for it", name=name
        )
    return tensor.to(device)


def extent_bytes(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last."""
    if not tensor.numel():
        return 0
    return (sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1) * tensor.element_size()


def _view(one: StreamedBuffer, tensors: Mapping[str, torch.Tensor], alias: str, slab: Slab) -> torch.Tensor:
    """The tensor's own window: its shape, strides and place within the buffer."""
    tensor, owner = tensors[alias], tensors[one.name]
    whole = owner.untyped_storage().nbytes() == one.size
    first = 0 if whole else int(owner.storage_offset()) * owner.element_size()
    low = int(tensor.storage_offset()) * tensor.element_size() - first
    if low < 0 or low + extent_bytes(tensor) > one.size:
        raise InvalidConfig(
            f"{alias} shares memory with {one.name} and reaches beyond it",
            fix="give each of them memory of its own, or tie them whole",
            name=alias,
        )
    return slab.view(one.address + low, tensor.shape, tensor.stride(), tensor.dtype)
