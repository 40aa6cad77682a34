"""Sources of the bytes of a weight: a tensor in memory, or one in a file."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from tmmu.errors import InvalidConfig
from tmmu.runtime.memory.allocated import require_allocated
from tmmu.runtime.memory.slab import is_dense
from tmmu.runtime.weights.safetensors_files import StoredTensor, read_stored


class Source(Protocol):
    """``size`` bytes in the order in which they lie in memory. One that is not divisible must be read whole."""

    @property
    def size(self) -> int:
        """In bytes."""

    @property
    def is_divisible(self) -> bool:
        """Whether a part of the bytes can be read."""

    def read(self, target: torch.Tensor, skip: int) -> None:
        """Fills ``target``, ``uint8[n]`` on the host, with the bytes from byte ``skip`` on."""


@dataclass(frozen=True, slots=True)
class TensorSource:
    """The bytes of ``image``, a ``uint8[size]`` view of a tensor's memory."""

    image: torch.Tensor
    is_divisible: bool = True

    @property
    def size(self) -> int:
        """In bytes."""
        return self.image.numel()

    def read(self, target: torch.Tensor, skip: int) -> None:
        """Copies a part of the image."""
        target.copy_(self.image[skip : skip + target.numel()])


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """A weight as the model itself has it: its dtype is right, whatever dtype the graph reads it as."""

    tensor: torch.Tensor


@dataclass(frozen=True, slots=True)
class FileSource:
    """The bytes of a tensor in a file, row-major as there, or permuted to ``stride``, in elements."""

    stored: StoredTensor
    stride: tuple[int, ...] | None = None
    has_model_dtype: bool = False
    """Whether its dtype is that of the model's own weight, whatever dtype the graph reads it as."""

    @property
    def size(self) -> int:
        """In bytes, as in the file."""
        return self.stored.size

    @property
    def is_divisible(self) -> bool:
        """Only where file and memory have the same order."""
        return self.stride is None

    def read(self, target: torch.Tensor, skip: int) -> None:
        """Reads straight into ``target``, or, to permute, through a copy of this one tensor."""
        if self.stride is None:
            read_stored(self.stored, target.numpy().data, skip)
            return
        rows = torch.empty(self.size, dtype=torch.uint8)
        read_stored(self.stored, rows.numpy().data)
        dtype = getattr(torch, self.stored.dtype)
        target.view(dtype).as_strided(self.stored.shape, self.stride).copy_(rows.view(dtype).view(self.stored.shape))


def tensor_source(name: str, tensor: torch.Tensor, size: int) -> TensorSource:
    """The whole storage of a tensor if that has ``size`` bytes, else its own elements in memory order."""
    detached = tensor.detach()
    require_allocated(detached, f"weight {name}")
    storage = detached.untyped_storage()
    if storage.nbytes() == size:
        return TensorSource(torch.empty(0, dtype=torch.uint8, device=detached.device).set_(storage, 0, (size,), (1,)))
    if detached.numel() * detached.element_size() != size or not is_dense(detached):
        raise _size_mismatch(name, detached.numel() * detached.element_size(), size)
    return TensorSource(detached.as_strided((detached.numel(),), (1,)).view(torch.uint8))


def file_source(stored: StoredTensor, size: int, like: torch.Tensor | None = None) -> FileSource:
    """A tensor in a file, which must have ``size`` bytes; in the memory order of ``like`` if that is given."""
    source = FileSource(stored) if like is None else file_source_like(stored, like)
    require_size(source, size)
    return source


def file_source_like(stored: StoredTensor, like: torch.Tensor) -> FileSource:
    """A tensor in a file in the memory order of ``like``; ``INVALID_CONFIG`` unless it has its shape and dtype.

    Complex numbers may be stored as pairs of real ones, along one more axis.
    """
    form = like.detach()
    if form.is_complex() and stored.dtype == _dtype_name(form.dtype.to_real()):
        form = torch.view_as_real(form)
    if _dtype_name(form.dtype) != stored.dtype or tuple(form.shape) != stored.shape:
        expected, actual = _format_type(_dtype_name(like.dtype), like.shape), _format_type(stored.dtype, stored.shape)
        raise InvalidConfig(
            f"{stored.name} is {actual} in {stored.path.name}, and {expected} in the model",
            fix="load the files of this very model",
            name=stored.name,
        )
    if not is_dense(form):
        raise InvalidConfig(
            f"{stored.name} is a part of a tensor in the model, or some of its elements share their memory",
            fix="give such a weight memory of its own in the model, or run without a file",
            name=stored.name,
        )
    return FileSource(stored, None if form.is_contiguous() else tuple(form.stride()), has_model_dtype=True)


def require_size(source: FileSource, size: int) -> None:
    """``INVALID_CONFIG`` unless a tensor in a file has ``size`` bytes."""
    if source.size != size:
        raise _size_mismatch(f"{source.stored.name} in {source.stored.path.name}", source.size, size)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype)[6:]


def _format_type(dtype: str, shape: Sequence[int]) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"


def _size_mismatch(name: str, actual: int, expected: int) -> InvalidConfig:
    return InvalidConfig(
        f"{name} has {actual} bytes, and its place in the plan {expected}",
        fix="plan for this very model, and give weights in the shape and dtype that it was planned for",
        name=name,
        bytes=actual,
    )
