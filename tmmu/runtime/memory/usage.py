"""How full a segment is, and how broken its free bytes are; readable at any time."""

from dataclasses import dataclass
from typing import Final

from tmmu.errors import AlignmentViolation, InvalidConfig

PPM: Final = 1_000_000
DEFAULT_ALIGNMENT: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Bytes of one segment. ``largest_free`` is the longest run that a single reservation can still get."""

    capacity: int
    used: int
    peak: int
    largest_free: int

    @property
    def free(self) -> int:
        """Bytes that nobody holds."""
        return self.capacity - self.used

    @property
    def utilization_ppm(self) -> int:
        """Held bytes in parts per million of the capacity; 0 of nothing."""
        return self.used * PPM // self.capacity if self.capacity else 0

    @property
    def fragmentation_ppm(self) -> int:
        """Free bytes outside the longest free run, in parts per million of the free ones; 0 of nothing."""
        return (self.free - self.largest_free) * PPM // self.free if self.free else 0


def round_up(count: int, alignment: int) -> int:
    """The next multiple of a power of two."""
    return (count + alignment - 1) & ~(alignment - 1)


def check_alignment(alignment: int) -> int:
    """``alignment``, a power of two; else ``AlignmentViolation``."""
    if alignment < 1 or alignment & (alignment - 1):
        raise AlignmentViolation(
            f"alignment {alignment} is not a power of two", fix="use 64, 128, 256 or another", alignment=alignment
        )
    return alignment


def check_size(label: str, size: int) -> int:
    """``size``, which is not negative; else ``InvalidConfig``."""
    if size < 0:
        raise InvalidConfig(f"{label}: {size} bytes", fix="give a size of 0 or more", bytes=size)
    return size
