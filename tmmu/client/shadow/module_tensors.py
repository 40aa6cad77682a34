"""The tensors of a module as they are at a moment, their bytes, and whether they are the same later."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from blake3 import blake3
from torch import nn

from tmmu.client.device.contents import UploadedTensor
from tmmu.errors import InvalidConfig
from tmmu.runtime.memory.slab import row_major_bytes
from tmmu.torch_private import version_counter


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TensorState:
    """A tensor and what says that it is the same: its place, its form, and torch's count of its writes."""

    tensor: torch.Tensor
    version: int
    address: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> "TensorState":
        """The state now. ``INVALID_CONFIG`` for what is no dense tensor in this machine's memory."""
        is_dense = type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout is torch.strided
        if not is_dense or tensor.device.type != "cpu" or tensor.is_quantized:
            raise InvalidConfig(
                f"{name} is a {type(tensor).__name__} on {tensor.device}", fix="move the module to the cpu, dense"
            )
        if tensor.is_inference():
            raise InvalidConfig(
                f"{name} does not count its writes", fix="make the module outside of torch.inference_mode()"
            )
        return cls(
            tensor=tensor,
            version=version_counter(tensor),
            address=tensor.data_ptr(),
            shape=tuple(tensor.shape),
            stride=tensor.stride(),
        )

    def is_state_of(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is this one, and nothing that torch counts has written it since."""
        return (
            tensor is self.tensor
            and version_counter(tensor) == self.version
            and tensor.data_ptr() == self.address
            and tuple(tensor.shape) == self.shape
            and tensor.stride() == self.stride
        )


class TensorImage:
    """The bytes of a tensor in the layout that it has on the server: its own, if that is dense.

    ``payload`` is the tensor's own memory then, and its hash that of the moment at which it was asked for first.
    """

    def __init__(self, tensor: torch.Tensor, digest: bytes | None = None) -> None:
        self._digest = digest
        form = torch.empty_like(tensor, device="meta")
        self.dtype, self.shape, self.stride = form.dtype, tuple(form.shape), form.stride()
        plain = tensor.detach().resolve_conj().resolve_neg()
        laid = (
            plain if plain.stride() == self.stride else torch.empty_strided(self.shape, self.stride, dtype=self.dtype)
        )
        if laid is not plain:
            laid.copy_(plain)
        flat = laid.as_strided((laid.numel(),), (1,)) if laid.numel() else laid.reshape(-1)
        self.payload: memoryview = row_major_bytes(flat).numpy().data

    @cached_property
    def hash(self) -> bytes:
        """BLAKE3 of the bytes; ``digest``, where that was known."""
        return blake3(self.payload).digest() if self._digest is None else self._digest

    @property
    def uploaded(self) -> UploadedTensor:
        """How it is named once it is on the server."""
        return UploadedTensor(
            hash=self.hash, bytes=len(self.payload), dtype=self.dtype, shape=self.shape, stride=self.stride
        )


class ModuleTensors:
    """States of all parameters and buffers of a module by name; tied ones have one state."""

    def __init__(self, module: nn.Module) -> None:
        states: dict[int, TensorState] = {}
        self.states: Mapping[str, TensorState] = {
            name: states.setdefault(id(tensor), TensorState.of(name, tensor))
            for name, tensor in tensors_of_module(module)
        }

    def changed(self, module: nn.Module) -> list[str]:
        """Names of tensors of the module that are others now, or gone, or new. Costs a few attributes a tensor."""
        now = dict(tensors_of_module(module))
        gone = [name for name in self.states if name not in now]
        return gone + [
            name for name, tensor in now.items() if name not in self.states or not self.states[name].is_state_of(tensor)
        ]


def tensors_of_module(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Parameters and buffers by name, tied ones by each of their names."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)
