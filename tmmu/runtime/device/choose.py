"""The backend for a device that torch names."""

from collections.abc import Sequence

import torch

from tmmu.errors import DeviceMissing
from tmmu.runtime.device.cuda import CudaDevice
from tmmu.runtime.device.interface import Observer
from tmmu.runtime.device.memory import MemoryDevice
from tmmu.runtime.device.threads import ThreadsDevice


def memory_device(device: torch.device | str, observers: Sequence[Observer] = ()) -> MemoryDevice:
    """A new ``CudaDevice`` or ``ThreadsDevice``; ``DEVICE_MISSING`` for any other kind and for an absent GPU."""
    torch_device = torch.device(device)
    if torch_device.type == "cpu":
        return ThreadsDevice(observers)
    if torch_device.type == "cuda":
        return CudaDevice(torch_device.index or 0, observers)
    raise DeviceMissing(f"nothing streams to {torch_device}", fix="use cpu or cuda", device=str(torch_device))
