"""Where a storage of a GPU's step lies: on the device, or on the host, of which it has a mark that its views share."""

from collections.abc import Iterable
from typing import Any, Final

import torch

HOST: Final = torch.device("cpu", 0)
"""How the host is named, in a call and to the program; what a tensor says of itself is the traced device, always."""

ON_DEVICE: Final = torch.device("cuda")
"""How a copy from the host names its place."""

TRACED_DEVICE: Final = torch.device("cpu")

_ON_HOST: Final = "_tmmu_on_host"


def place_of(tensor: torch.Tensor) -> torch.device:
    """``HOST`` or the traced device."""
    return HOST if is_on_host(tensor) else TRACED_DEVICE


def is_on_host(tensor: torch.Tensor) -> bool:
    """Whether the tensor's storage is marked as the host's."""
    return tensor.layout is torch.strided and is_host_storage(tensor.untyped_storage())


def is_host_storage(storage: torch.UntypedStorage) -> bool:
    """Whether it is marked as the host's."""
    return hasattr(storage, _ON_HOST)


def mark_host(tensors: Iterable[torch.Tensor]) -> None:
    """Note that the storages of these are the host's, for as long as they live."""
    for tensor in tensors:
        setattr(tensor.untyped_storage(), _ON_HOST, True)


def result_is_on_host(args: Iterable[Any], device: torch.device | None) -> bool:
    """Whether what a call makes is the host's: ``device`` says so, or all of its tensors are there.

    Numbers as tensors of no dimension follow the others, as torch lets them.
    """
    if device in {HOST, ON_DEVICE}:
        return device == HOST
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    shaped = [tensor for tensor in tensors if tensor.dim()] or tensors
    return bool(shaped) and all(map(is_on_host, shaped))
