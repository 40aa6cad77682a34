"""The backend for a device that torch names."""

from collections.abc import Sequence

import torch

from tmmu.errors import DeviceMissing
from tmmu.runtime.device.cuda import CudaDevice
from tmmu.runtime.device.interface import Observer
from tmmu.runtime.device.memory import MemoryDevice
from tmmu.runtime.device.threads import ThreadsDevice


def memory_device(device: torch.device | str, observers: Sequence[Observer] = ()) -> MemoryDevice:
    """CUDA or CPU threads; ``DEVICE_MISSING`` for any other, and where there is none."""
    where = torch.device(device)
    if where.type == "cpu":
        return ThreadsDevice(observers)
    if where.type == "cuda":
        return CudaDevice(where.index or 0, observers)
    raise DeviceMissing(f"nothing streams to {where}", fix="use cpu or cuda", device=str(where))
