"""Devices that hold bytes, and not only account for them."""

from abc import abstractmethod

import torch

from tmmu.runtime.device.interface import Arena, Device
from tmmu.runtime.slab import Slab


class MemoryDevice(Device):
    """A device whose arenas can be looked at."""

    device: torch.device
    """Where torch says that its tensors are."""

    @abstractmethod
    def memory(self, arena: Arena) -> Slab:
        """The bytes of an arena that was not released."""
