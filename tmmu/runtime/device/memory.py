"""Devices whose arenas hold bytes, beside those that only account for them."""

from abc import abstractmethod

import torch

from tmmu.runtime.device.interface import Arena, Device
from tmmu.runtime.device.pinning import Registrar
from tmmu.runtime.memory.slab import Slab


class MemoryDevice(Device):
    """A device whose arenas are memory that tensors can view."""

    device: torch.device
    """The torch device of those tensors."""
    registrar: Registrar | None = None
    """Pins host memory for this device, where that makes copies faster."""
    node: int = -1
    """The NUMA node that it is attached to; -1 where there is one node, or it is not known."""

    _slabs: dict[int, Slab]
    """The bytes of each arena, by its number."""

    def adopt(self, slab: Slab) -> Arena:
        """Bytes that are there already, of this device or of the host, as an arena; ``release`` frees nothing of it."""
        arena = Arena(len(self._arenas), slab.size)
        self._arenas.append(arena)
        self._slabs[arena.number] = slab
        return arena

    @abstractmethod
    def memory(self, arena: Arena) -> Slab:
        """The bytes of an arena that was not released."""
