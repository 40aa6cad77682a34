"""How full a segment is, and how fragmented its free bytes; checks that its allocators share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tmmu.errors import AlignmentViolation, InvalidConfig

PPM: Final = 1_000_000
DEFAULT_ALIGNMENT: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Bytes of one segment. ``largest_free`` is the largest reservation that still fits."""

    capacity: int
    used: int
    peak: int
    largest_free: int

    @property
    def free(self) -> int:
        """Bytes that are not used."""
        return self.capacity - self.used

    @property
    def utilization_ppm(self) -> int:
        """Used bytes in parts per million of the capacity; 0 for a capacity of 0."""
        return self.used * PPM // self.capacity if self.capacity else 0

    @property
    def fragmentation_ppm(self) -> int:
        """Free bytes outside the largest free run, in parts per million of all free ones; 0 where none are free."""
        return (self.free - self.largest_free) * PPM // self.free if self.free else 0


def sum_usage(parts: Sequence[Usage]) -> Usage:
    """Of several segments together; ``largest_free`` is of the one that has it."""
    return Usage(
        capacity=sum(part.capacity for part in parts),
        used=sum(part.used for part in parts),
        peak=sum(part.peak for part in parts),
        largest_free=max(part.largest_free for part in parts),
    )


def round_up(count: int, alignment: int) -> int:
    """The least multiple of ``alignment``, a power of two, that is not below ``count``."""
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
