"""Device memory behind segments: what is reserved of it, how often it was asked, and what it refuses."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tmmu.eager.allocator_config import SEGMENT_STEP_BYTES, AllocatorConfig

_UNLIMITED_SPACE = 1 << 47
"""Address space of an expandable segment on a device of no known capacity."""


@dataclass(slots=True, eq=False, kw_only=True)
class SegmentSupply:
    """The device as the allocator meets it: bytes are reserved and given back, never more than ``capacity`` at once.

    ``addresses`` says where a segment of so many bytes begins. Real addresses are the driver's own; here each lies
    above all before it, so that segments are in the order in which they were made. They only break ties.
    """

    config: AllocatorConfig
    capacity: int | None = None
    addresses: Callable[[int], int] | None = None
    reserved: int = 0
    allocs: int = 0
    """Segments made, and ranges mapped into expandable ones."""
    frees: int = 0
    """Segments given back, and ranges unmapped."""
    _next_address: int = field(default=SEGMENT_STEP_BYTES)

    @property
    def allowed(self) -> int | None:
        """What a fraction below 1 leaves of the capacity; ``None`` where nothing but the device refuses."""
        fraction = self.config.per_process_memory_fraction
        return None if self.capacity is None or fraction >= 1 else int(fraction * self.capacity)

    def is_allowed(self, nbytes: int) -> bool:
        """Whether the fraction of this process has room for ``nbytes`` more."""
        return self.allowed is None or self.reserved + nbytes <= self.allowed

    def reserve(self, nbytes: int) -> bool:
        """Take ``nbytes`` of the device; False, and nothing taken, where it has no room."""
        if self.capacity is not None and self.reserved + nbytes > self.capacity:
            return False
        self.reserved += nbytes
        self.allocs += 1
        return True

    def release(self, nbytes: int) -> None:
        """Give ``nbytes`` back."""
        self.reserved -= nbytes
        self.frees += 1

    def address(self, nbytes: int) -> int:
        """The first address of a new segment, or of the address space of an expandable one."""
        if self.addresses is not None:
            return self.addresses(nbytes)
        address = self._next_address
        self.avoid(address, nbytes)
        return address

    def avoid(self, address: int, nbytes: int) -> None:
        """Later segments begin above these bytes."""
        end = -(-(address + nbytes) // SEGMENT_STEP_BYTES) * SEGMENT_STEP_BYTES
        self._next_address = max(self._next_address, end)

    def address_space(self, page: int) -> int:
        """Bytes of address space of an expandable segment with pages of ``page`` bytes: 9/8 of the device."""
        nbytes = _UNLIMITED_SPACE if self.capacity is None else self.capacity + self.capacity // 8
        return -(-nbytes // page) * page
