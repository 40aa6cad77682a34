"""Where the bytes of a weight come from: a tensor that is there, or a tensor in a file."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from tmmu.errors import InvalidConfig
from tmmu.runtime.memory.slab import is_dense
from tmmu.runtime.weights.safetensors_files import Stored, read_stored


class Source(Protocol):
    """``size`` bytes as they are to lie in memory. What cannot be ``divided`` is read in one go."""

    @property
    def size(self) -> int:
        """How many."""

    @property
    def divided(self) -> bool:
        """Whether parts of it can be read."""

    def read(self, target: torch.Tensor, skip: int) -> None:
        """``target``, ``uint8[n]`` on the host, holds the bytes from ``skip`` on."""


@dataclass(frozen=True, slots=True)
class OfTensor:
    """The bytes of a ``uint8[size]``."""

    image: torch.Tensor
    divided: bool = True

    @property
    def size(self) -> int:
        """Its length."""
        return self.image.numel()

    def read(self, target: torch.Tensor, skip: int) -> None:
        """A copy."""
        target.copy_(self.image[skip : skip + target.numel()])


@dataclass(frozen=True, slots=True)
class OfFile:
    """The bytes of a tensor in a file, row-major as they lie there, or by ``stride`` where memory wants them so."""

    stored: Stored
    stride: tuple[int, ...] | None = None

    @property
    def size(self) -> int:
        """As in the file."""
        return self.stored.size

    @property
    def divided(self) -> bool:
        """Only where file and memory agree on the order."""
        return self.stride is None

    def read(self, target: torch.Tensor, skip: int) -> None:
        """Straight into place, or through a copy of this one tensor."""
        if self.stride is None:
            read_stored(self.stored, target.numpy().data, skip)
            return
        rows = torch.empty(self.size, dtype=torch.uint8)
        read_stored(self.stored, rows.numpy().data)
        dtype = getattr(torch, self.stored.dtype)
        target.view(dtype).as_strided(self.stored.shape, self.stride).copy_(rows.view(dtype).view(self.stored.shape))


def tensor_source(name: str, tensor: torch.Tensor, size: int) -> OfTensor:
    """The storage of a tensor if that has ``size`` bytes, else its own elements in the order of memory."""
    plain = tensor.detach()
    storage = plain.untyped_storage()
    if storage.nbytes() == size:
        return OfTensor(torch.empty(0, dtype=torch.uint8, device=plain.device).set_(storage, 0, (size,), (1,)))
    if plain.numel() * plain.element_size() != size or not is_dense(plain):
        raise _other(name, plain.numel() * plain.element_size(), size)
    return OfTensor(plain.as_strided((plain.numel(),), (1,)).view(torch.uint8))


def file_source(one: Stored, size: int, like: torch.Tensor | None = None) -> OfFile:
    """The tensor in the file, of ``size`` bytes, in the shape, dtype and memory order of ``like`` if that is given."""
    source = OfFile(one) if like is None else laid_out(one, like)
    require_size(source, size)
    return source


def laid_out(one: Stored, like: torch.Tensor) -> OfFile:
    """The tensor in the file, in the memory order of ``like``; ``INVALID_CONFIG`` unless it has its shape and dtype.

    Complex numbers may be pairs of real ones in the file, in one more dimension.
    """
    form = like.detach()
    if form.is_complex() and one.dtype == _name(form.dtype.to_real()):
        form = torch.view_as_real(form)
    if _name(form.dtype) != one.dtype or tuple(form.shape) != one.shape:
        wanted, found = _type(_name(like.dtype), like.shape), _type(one.dtype, one.shape)
        raise InvalidConfig(
            f"{one.name} is {found} in {one.path.name}, and {wanted} in the model",
            fix="load the files of this very model",
            name=one.name,
        )
    if not is_dense(form):
        raise InvalidConfig(
            f"{one.name} is a part of a tensor in the model, or some of its elements share their memory",
            fix="give such a weight memory of its own in the model, or run without a file",
            name=one.name,
        )
    return OfFile(one) if form.is_contiguous() else OfFile(one, tuple(form.stride()))


def require_size(source: OfFile, size: int) -> None:
    """``INVALID_CONFIG`` unless the tensor in the file has ``size`` bytes."""
    if source.size != size:
        raise _other(f"{source.stored.name} in {source.stored.path.name}", source.size, size)


def _name(dtype: torch.dtype) -> str:
    return str(dtype)[6:]


def _type(dtype: str, shape: Sequence[int]) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"


def _other(name: str, found: int, wanted: int) -> InvalidConfig:
    return InvalidConfig(
        f"{name} has {found} bytes, and its place in the plan {wanted}",
        fix="plan for this very model, and give weights in the shape and dtype that it was planned for",
        name=name,
        bytes=found,
    )
