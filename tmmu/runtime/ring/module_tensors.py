"""The tensors of a module that stream: in which buffer of the ring each lies, and pointing them there for a while.

Tensors on one storage (tied weights, views) lie in one buffer and stay together. A block has one address for ever, so
each tensor is pointed at the ring once, when streaming starts; running a layer makes no view.
"""

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
from tmmu.torch_private import buffer_table, can_take_data_of, cpp_address, parameter_table


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedBuffer:
    """A buffer of the ring, ``size`` bytes at ``address``, and the module's tensors on it.

    ``aliases`` are all names of these tensors; the first one is ``name``, the graph's name of the buffer.
    """

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
    sharing: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        sharing.setdefault(cpp_address(tensor.untyped_storage()), []).append(name)
    buffers = []
    for index, block in enumerate(ring.blocks):
        for member in block.members:
            name = names[member.buffer]
            if name not in tensors:
                raise InvalidConfig(
                    f"the module has no {name}, which {block.name} of the ring holds",
                    fix="plan the ring for this very module",
                    name=name,
                )
            aliases = sharing[cpp_address(tensors[name].untyped_storage())]
            for alias in aliases:
                _require_plain(alias, tensors[alias])
            buffers.append(
                StreamedBuffer(
                    buffer=member.buffer,
                    block=index,
                    address=block.address + member.offset,
                    size=size[member.buffer],
                    name=name,
                    aliases=(name, *(alias for alias in aliases if alias != name)),
                )
            )
    return buffers


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
    buffers: Sequence[StreamedBuffer],
    slab: Slab,
    device: torch.device,
) -> Iterator[None]:
    """While inside, tensors on ``buffers`` are views of the slab, and all others are on ``device``."""
    views = {alias: _view(buffer, tensors, alias, slab) for buffer in buffers for alias in buffer.aliases}
    with ExitStack() as stack:
        placed: dict[int, torch.Tensor] = {}
        for name, tensor in tensors.items():
            # A tensor with several names is placed once, and all names get the same one.
            if id(tensor) not in placed:
                view = views.get(name)
                stays = view is None and tensor.device == device
                placed[id(tensor)] = tensor if stays else _rebind(stack, name, tensor, view, device)
            if placed[id(tensor)] is not tensor:
                _replace_tensor(stack, module, name, placed[id(tensor)])
        yield


def _rebind(
    stack: ExitStack, name: str, tensor: torch.Tensor, view: torch.Tensor | None, device: torch.device
) -> torch.Tensor:
    """The tensor itself on other memory until the stack unwinds, or a substitute where torch forbids that.

    Without a ``view`` on the ring it moves to ``device``; what is written there is copied back.
    """
    before = tensor.data
    after = _move_to_device(name, before, device) if view is None else view
    if not can_take_data_of(tensor, after):
        return nn.Parameter(after, requires_grad=False) if isinstance(tensor, nn.Parameter) else after

    def restore() -> None:
        now, tensor.data = tensor.data, before
        if view is None:
            before.copy_(now)

    tensor.data = after
    stack.callback(restore)
    return tensor


def _replace_tensor(stack: ExitStack, module: nn.Module, name: str, tensor: torch.Tensor) -> None:
    """The module has this tensor under that name until the stack unwinds."""
    path, _, own = name.rpartition(".")
    owner = module.get_submodule(path)
    table: dict[str, Any] = parameter_table(owner) if own in parameter_table(owner) else buffer_table(owner)
    stack.callback(table.__setitem__, own, table[own])
    table[own] = tensor


def _move_to_device(name: str, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    if tensor.device.type == "meta":
        raise InvalidConfig(
            f"{name} has no value, and is not in the ring", fix="make the module with values for it", name=name
        )
    return tensor.to(device)


def extent_bytes(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last, gaps of its strides included."""
    if not tensor.numel():
        return 0
    return (sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1) * tensor.element_size()


def _view(buffer: StreamedBuffer, tensors: Mapping[str, torch.Tensor], alias: str, slab: Slab) -> torch.Tensor:
    """The tensor's own shape, strides and offset, on the buffer's place in the slab."""
    tensor, owner = tensors[alias], tensors[buffer.name]
    is_whole_storage = owner.untyped_storage().nbytes() == buffer.size
    first = 0 if is_whole_storage else int(owner.storage_offset()) * owner.element_size()
    low = int(tensor.storage_offset()) * tensor.element_size() - first
    if low < 0 or low + extent_bytes(tensor) > buffer.size:
        raise InvalidConfig(
            f"{alias} shares memory with {buffer.name} and reaches beyond it",
            fix="give each of them memory of its own, or tie them whole",
            name=alias,
        )
    return slab.view(buffer.address + low, tensor.shape, tensor.stride(), tensor.dtype)
