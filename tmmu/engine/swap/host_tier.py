"""The host tier: one range of host memory for the states of sessions, and what has moved there and back.

It is pinned where the device has such, and of just its size: nothing is allocated or pinned while sessions move. A
state takes exactly its bytes, in as many ranges as there are gaps to fill. Invariant: ranges are disjoint, and no
range reaches over two segments that are pinned apart.
"""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tmmu.errors import InternalError
from tmmu.runtime.device.pinning import SEGMENT, PinningRefused, Registrar, pin, unpin
from tmmu.runtime.memory.byte_ranges import ByteRanges
from tmmu.runtime.memory.slab import Slab
from tmmu.runtime.ring.host_image import map_memory

STATE: Final = "state"
"""The owner of all ranges: images know which are theirs."""


@dataclass(frozen=True, slots=True)
class HostRange:
    """``size`` bytes of the tier from ``offset`` on."""

    offset: int
    size: int


@dataclass(slots=True)
class SwapCounts:
    """What has been moved so far: sessions and bytes, out to the host and in again.

    ``overlapped``: bytes of copies that were under way while a step ran.
    """

    sessions_out: int = 0
    sessions_in: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    overlapped: int = 0


class HostTier:
    """``budget`` bytes of host memory, backed by pages as they are used; pinned at once where ``registrar`` can."""

    def __init__(self, budget: int, registrar: Registrar | None = None) -> None:
        self.budget, self.counts = budget, SwapCounts()
        memory = map_memory(budget)
        self.slab = Slab.over(memory)
        self._ranges: ByteRanges[str] = ByteRanges(budget)
        self._registrar = registrar if budget else None
        self._pinned: tuple[int, ...] = ()
        if self._registrar is not None:
            pinning = pin(memory.data_ptr(), [*range(0, budget, SEGMENT), budget], self._registrar)
            self._pinned = pinning.segments
            if pinning.refusal:
                warnings.warn(
                    f"the {budget} bytes of the host tier are not pinned ({pinning.refusal}): every copy makes the "
                    "host wait; raise the limit of locked memory (ulimit -l), or give a smaller host=",
                    PinningRefused,
                    stacklevel=4,
                )

    @property
    def used(self) -> int:
        """Bytes of states that it has or that are on their way to it."""
        return self._ranges.used

    def take(self, size: int) -> list[HostRange]:
        """``size`` bytes, from the lowest gaps; whoever asks knows that there are so many. Linear in all ranges."""
        if self._ranges.used + size > self.budget:
            raise InternalError(f"{size} bytes more in a host tier of {self.budget}, {self.used} of which are used")
        ranges: list[HostRange] = []
        while size:
            low, high = next(gap for gap in self._ranges.gaps() if gap[0] < gap[1])
            count = min(size, high - low, SEGMENT - low % SEGMENT)
            self._ranges.take(count, STATE)
            ranges.append(HostRange(low, count))
            size -= count
        return ranges

    def free(self, ranges: Iterable[HostRange]) -> None:
        """Gives ranges back; what is in them is the caller's to wipe."""
        for host_range in ranges:
            self._ranges.free(host_range.offset, host_range.size)

    def close(self) -> None:
        """Unpins the memory. May be called twice."""
        if self._registrar is not None:
            unpin(self._pinned, self._registrar)
            self._registrar = None
