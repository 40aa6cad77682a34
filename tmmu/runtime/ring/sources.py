"""Where the bytes of a weight come from: a tensor that is there, or a tensor in a file."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from tmmu.errors import InvalidConfig
from tmmu.runtime.ring.files import Stored, read_stored
from tmmu.runtime.slab import is_dense


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
    if one.size != size:
        raise _other(one.name, one.size, size)
    if like is None:
        return OfFile(one)
    if str(like.dtype)[6:] != one.dtype or tuple(like.shape) != one.shape:
        wanted, found = _type(str(like.dtype)[6:], like.shape), _type(one.dtype, one.shape)
        raise InvalidConfig(
            f"{one.name} is {found} in {one.path.name}, and {wanted} in the module",
            fix="load the files of this very model",
            name=one.name,
        )
    return OfFile(one) if like.is_contiguous() else OfFile(one, tuple(like.stride()))


def _type(dtype: str, shape: Sequence[int]) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"


def _other(name: str, found: int, wanted: int) -> InvalidConfig:
    return InvalidConfig(
        f"{name} has {found} bytes, and its place in the ring {wanted}",
        fix="plan the ring for this very model, and give weights in the shape and dtype that it was planned for",
        name=name,
        bytes=found,
    )
