"""The three segments of a device: their allocators, their bytes, and the lock that serializes what runs in them.

Segments *beside* others have a stack, and that lock, of their own, and share the rest: so several steps run at once.

Invariant: between runs the stack is empty, because a run pushes its slab and resets to where it began.
"""

import torch

from tmmu.runtime.memory.data import NO_QUOTA, DataSegment
from tmmu.runtime.memory.exclusive import ExclusiveAccess
from tmmu.runtime.memory.sizing import SegmentSizes, Sizing, device_memory, device_of, segment_sizes
from tmmu.runtime.memory.slab import Slab
from tmmu.runtime.memory.stack import StackSegment
from tmmu.runtime.memory.text import TextSegment
from tmmu.runtime.memory.usage import DEFAULT_ALIGNMENT, Usage


class Segments:
    """Text, data and stack of one device, allocated and zero. Executors that share them run one at a time."""

    def __init__(
        self,
        sizes: SegmentSizes,
        device: torch.device | str = "cpu",
        *,
        quota: int = NO_QUOTA,
        alignment: int = DEFAULT_ALIGNMENT,
    ) -> None:
        self.device = device_of(device)
        self.alignment = alignment
        self.text = TextSegment(sizes.text, alignment=alignment)
        self.data = DataSegment(sizes.data, quota=quota, alignment=alignment)
        self.stack = StackSegment(sizes.stack, alignment=alignment)
        self.slabs = {name: Slab(getattr(sizes, name), alignment, self.device) for name in ("text", "data", "stack")}
        self.exclusive = ExclusiveAccess()

    def beside(self) -> "Segments":
        """Segments with a stack of their own, as large as this one; text and data are the same.

        What is bound there shares weights and sessions with what is bound here, and runs at the same time.
        """
        other = Segments.__new__(Segments)
        other.device, other.alignment, other.text, other.data = self.device, self.alignment, self.text, self.data
        other.stack = StackSegment(self.stack.capacity, alignment=self.alignment)
        other.slabs = {**self.slabs, "stack": Slab(self.stack.capacity, self.alignment, self.device)}
        other.exclusive = ExclusiveAccess()
        return other

    @classmethod
    def of_device(cls, device: torch.device | str = "cpu", sizing: Sizing | None = None) -> "Segments":
        """Segments sized by the memory that the device has free; ``DEVICE_MEMORY`` where that is too little."""
        resolved = device_of(device)
        return cls(segment_sizes(*device_memory(resolved), sizing), resolved)

    def close(self) -> None:
        """Gives the bytes back; whatever is bound to them must not run again. Again it does nothing.

        A segment of which a NumPy array was made (``ThreadsDevice.adopt``) cannot shrink, and goes with its last view.
        """
        self.text.drop_unused()
        for slab in self.slabs.values():
            if slab.storage.resizable():
                slab.storage.resize_(0)

    @property
    def usage(self) -> dict[str, Usage]:
        """By segment: capacity, used, peak and largest free run, in bytes."""
        return {"text": self.text.usage, "data": self.data.usage, "stack": self.stack.usage}
