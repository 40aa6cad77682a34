"""One allocation on a device, and tensors that are views of it."""

from collections.abc import Sequence
from typing import Final, TypeAlias

import torch

from tmmu.errors import AlignmentViolation, DeviceMemory, InternalError
from tmmu.runtime.memory.allocated import reach_bytes
from tmmu.runtime.memory.zero import zero_tensor
from tmmu.torch_private import cpp_address

PACKED: Final = frozenset({torch.float4_e2m1fn_x2})
"""Dtypes of several numbers an element, which torch neither converts nor copies."""
MIN_ALIGNMENT: Final = 64
"""Bytes; what torch's CPU allocator guarantees."""


class Slab:
    """``size`` zero bytes whose first address is a multiple of ``alignment``. One allocation, never resized.

    ``pinned``: page-locked host memory, which a GPU copies from and to while the host goes on.
    """

    def __init__(self, size: int, alignment: int, device: torch.device, *, pinned: bool = False) -> None:
        self.size = size
        alignment = max(alignment, MIN_ALIGNMENT)
        try:
            whole = torch.empty(size + alignment, dtype=torch.uint8, device=device, pin_memory=pinned)
        except RuntimeError as error:
            raise DeviceMemory(
                f"{device} does not give {size} bytes in one piece",
                fix="free memory on the device, or plan a smaller batch or sequence",
                bytes=size,
                device=str(device),
            ) from error
        self.storage = whole.untyped_storage()
        # ``alignment`` bytes more than needed leave room to begin at a multiple of it, wherever the allocation is.
        self.base = -whole.data_ptr() % alignment
        zero_tensor(self.bytes(0, size))

    @classmethod
    def over(cls, tensor: torch.Tensor) -> "Slab":
        """A slab over the storage of ``tensor`` from its first element on, which it keeps alive and does not zero."""
        slab = cls.__new__(cls)
        slab.storage = tensor.untyped_storage()
        slab.base = int(tensor.storage_offset()) * tensor.element_size()
        slab.size = slab.storage.nbytes() - slab.base
        return slab

    def bytes(self, offset: int, size: int) -> torch.Tensor:
        """``uint8[size]`` at a byte offset of the slab."""
        return self.view(offset, (size,), (1,), torch.uint8)

    def view(self, offset: int, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A view at a byte offset, ``shape`` and ``stride`` in elements; ``ALIGNMENT_VIOLATION`` for an odd offset."""
        address = self.base + offset
        if address % dtype.itemsize:
            raise AlignmentViolation(
                f"offset {offset} is not aligned for {dtype}",
                fix=f"plan with an alignment of at least {dtype.itemsize}",
                offset=offset,
            )
        end = address + reach_bytes(shape, stride, dtype.itemsize)
        if end > self.storage.nbytes() and 0 not in shape:  # set_ would let the storage grow, a caller's too
            raise InternalError(f"a view ends at byte {end} of a storage of {self.storage.nbytes()}")
        with torch.inference_mode(mode=False):  # a tensor made inside could not be written outside, and views are kept
            empty = torch.empty(0, dtype=dtype, device=self.storage.device)
            return empty.set_(self.storage, address // dtype.itemsize, tuple(shape), tuple(stride))


def host_copy(place: torch.Tensor) -> torch.Tensor:
    """``uint8[bytes]``: the bytes of a place on the host, page-locked where the place is a GPU's."""
    with torch.inference_mode(mode=False):
        return torch.empty(place.shape, dtype=torch.uint8, pin_memory=place.is_cuda).copy_(place)


Location: TypeAlias = tuple[Slab, int]
"""Where a buffer lies: a byte offset in a slab."""


def is_same_view(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have the same storage, offset, shape, strides and dtype."""
    return (
        cpp_address(a.untyped_storage()) == cpp_address(b.untyped_storage())
        and a.storage_offset() == b.storage_offset()
        and a.shape == b.shape
        and a.stride() == b.stride()
        and a.dtype == b.dtype
    )


def may_overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have one storage, and byte ranges in it that overlap."""
    if cpp_address(a.untyped_storage()) != cpp_address(b.untyped_storage()):
        return False
    (low, high), (begin, end) = byte_range(a), byte_range(b)
    return low < end and begin < high


def byte_range(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes of its storage that a tensor spans, half-open, gaps between elements included."""
    low = int(tensor.storage_offset()) * tensor.element_size()
    if tensor.numel() == 0:
        return low, low
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return low, low + (reach + 1) * tensor.element_size()


def with_lazy_bits(tensor: torch.Tensor, *, conj: bool, neg: bool) -> torch.Tensor:
    """The tensor, or a view of it whose readers see its elements conjugated, negated or both."""
    negated = torch.ops.aten._neg_view.default(tensor) if neg else tensor
    return torch.ops.aten._conj.default(negated) if conj else negated


def in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a view of it on the elements as they lie in memory, neither conjugated nor negated."""
    return with_lazy_bits(tensor, conj=tensor.is_conj(), neg=tensor.is_neg())


def has_same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have the same shape, dtype and bytes: signed zeros and NaNs count as what they are."""
    return a.shape == b.shape and a.dtype == b.dtype and row_major_bytes(a).equal(row_major_bytes(b))


def row_major_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The elements, row-major, as ``uint8[bytes]``; a copy where the tensor is not contiguous."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8)  # an axis of one element may have any stride


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill their byte range, each byte once, in some order of the axes."""
    expected = 1
    for stride, n in sorted((s, n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n != 1):
        if stride != expected:
            return tensor.numel() == 0
        expected *= n
    return True
