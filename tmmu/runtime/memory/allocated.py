"""Whether a caller's tensor has its bytes: a storage may be freed or cut under it, and is, by ``resize_(0)``.

Torch itself may read on, fall over, or let the storage grow; what reads or writes a caller's memory asks here first.
"""

from collections.abc import Sequence

import torch

from tmmu.errors import InvalidConfig


def reach_bytes(shape: Sequence[int], stride: Sequence[int], width: int) -> int:
    """From a tensor's first element to the end of its last; 0 for one without elements."""
    if 0 in shape:
        return 0
    return (sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) + 1) * width


def is_allocated(tensor: torch.Tensor, reach: int) -> bool:
    """Whether the storage of a dense tensor has the ``reach`` bytes from its first element on. 0.2 microseconds."""
    return (
        int(tensor.storage_offset()) * tensor.element_size() + reach <= tensor.untyped_storage().nbytes() or not reach
    )


def require_allocated(tensor: torch.Tensor, name: str) -> None:
    """``INVALID_CONFIG`` for a dense tensor whose storage has not all of its bytes."""
    if not is_allocated(tensor, reach_bytes(tensor.shape, tensor.stride(), tensor.element_size())):
        raise freed(tensor, name)


def freed(tensor: torch.Tensor, name: str) -> InvalidConfig:
    """The refusal of a tensor that has not all of its bytes."""
    form = f"{str(tensor.dtype)[6:]}[{','.join(map(str, tensor.shape))}]"
    return InvalidConfig(
        f"{name} is {form}, and its storage has {tensor.untyped_storage().nbytes()} bytes: it was freed or cut",
        fix="give the storage its bytes back before the call",
        name=name,
    )
