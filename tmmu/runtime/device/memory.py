"""Devices that hold bytes, and not only account for them."""

from abc import abstractmethod

import torch

from tmmu.runtime.device.interface import Arena, Device
from tmmu.runtime.device.pinning import Registrar
from tmmu.runtime.memory.slab import Slab


class MemoryDevice(Device):
    """A device whose arenas can be looked at."""

    device: torch.device
    """Where torch says that its tensors are."""
    registrar: Registrar | None = None
    """What makes host memory known to it, where that makes copies faster."""
    node: int = -1
    """The node of the machine that it is attached to; -1 where there is but one, or nobody knows."""

    @abstractmethod
    def memory(self, arena: Arena) -> Slab:
        """The bytes of an arena that was not released."""
