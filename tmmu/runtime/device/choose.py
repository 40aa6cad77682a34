"""The backend for a device that torch names."""

import torch

from tmmu.errors import DeviceMissing
from tmmu.runtime.device.cuda import CudaDevice
from tmmu.runtime.device.memory import MemoryDevice
from tmmu.runtime.device.threads import ThreadsDevice


def memory_device(device: torch.device | str) -> MemoryDevice:
    """CUDA or CPU threads; ``DEVICE_MISSING`` for any other, and where there is none."""
    where = torch.device(device)
    if where.type == "cpu":
        return ThreadsDevice()
    if where.type == "cuda":
        return CudaDevice(where.index or 0)
    raise DeviceMissing(f"nothing streams to {where}", fix="use cpu or cuda", device=str(where))
