"""Whether a call may run on this machine: with half as much again free as it takes, so that the host never swaps."""

from collections.abc import Callable
from typing import Final, TypeAlias

import torch

from tmmu.errors import DeviceMemory
from tmmu.runtime.memory.sizing import device_memory

FACTOR_PERCENT: Final = 150
FreeBytes: TypeAlias = Callable[[], int]
"""Bytes that can be had without swapping, now."""


def host_free_bytes() -> int:
    """Of this machine."""
    return device_memory(torch.device("cpu"))[0]


def require_local_room(planned: int, free_bytes: FreeBytes, *, fix: str) -> None:
    """``DEVICE_MEMORY`` where a local run that takes ``planned`` bytes finds less than 1.5 times as many free."""
    needed, free = -(-planned * FACTOR_PERCENT // 100), free_bytes()
    if needed > free:
        raise DeviceMemory(
            f"a local run takes {planned} bytes and asks for {needed} free ones, of which there are {free}",
            fix=fix,
            planned=planned,
            needed=needed,
            free=free,
        )
