"""The stack segment: a bump pointer over the slabs of running steps, reset to a watermark when a step ends.

State: the top and its peak, in bytes, and the *parked* bytes: what paused runs left above the top, to be found again.
Invariants: ``0 <= top <= capacity``, and top is a multiple of the alignment. There are no holes: a slab is freed with
all that was pushed after it. Nobody gets a slab before whoever has parked bytes in it has moved them.
"""

from typing import Protocol

from tmmu.errors import InvalidConfig, SegmentFull
from tmmu.runtime.memory.usage import DEFAULT_ALIGNMENT, Usage, check_alignment, check_size, round_up


class ParkedBytes(Protocol):
    """What a paused run has left in the stack."""

    def make_room(self, low: int, high: int, /) -> None:
        """Moves what it has in the bytes ``[low, high)`` of the segment, which are written once this returns."""


class StackSegment:
    """``push`` a slab; ``mark`` the top and ``reset`` to it, each in O(1)."""

    def __init__(self, capacity: int, alignment: int = DEFAULT_ALIGNMENT) -> None:
        self.capacity = check_size("stack segment", capacity)
        self.alignment = check_alignment(alignment)
        self._top = 0
        self._peak = 0
        self._parked: list[ParkedBytes] = []

    def mark(self) -> int:
        """The top, as a watermark: a ``reset`` to it keeps what lies below."""
        return self._top

    def push(self, size: int) -> int:
        """Byte offset of a new slab of ``size`` bytes, rounded up to the alignment; or ``SEGMENT_FULL``.

        Parked bytes in it are moved away first; where that fails, nothing is pushed.
        """
        padded = round_up(check_size("slab", size), self.alignment)
        if self._top + padded > self.capacity:
            free = self.capacity - self._top
            raise SegmentFull(
                f"the stack segment has {free} of {self.capacity} bytes left, and the slab needs {padded}",
                fix="give the stack a larger share, or plan a smaller batch or sequence",
                segment="stack",
                bytes=padded,
                free=free,
                capacity=self.capacity,
            )
        for parked in self._parked:
            parked.make_room(self._top, self._top + padded)
        offset, self._top = self._top, self._top + padded
        self._peak = max(self._peak, self._top)
        return offset

    def reset(self, mark: int) -> None:
        """Frees everything above the watermark."""
        if not 0 <= mark <= self._top:
            raise InvalidConfig(
                f"watermark {mark} is not on the stack, whose top is {self._top}", fix="reset to a mark taken before"
            )
        self._top = mark

    def park(self, parked: ParkedBytes) -> None:
        """Has ``parked`` asked to make room before anybody gets a slab where it has bytes."""
        self._parked.append(parked)

    def unpark(self, parked: ParkedBytes) -> None:
        """Forgets it; nothing where it is not parked."""
        self._parked = [other for other in self._parked if other is not parked]

    @property
    def usage(self) -> Usage:
        """``used`` is what lies below the top; ``peak`` is the highest top so far."""
        return Usage(capacity=self.capacity, used=self._top, peak=self._peak, largest_free=self.capacity - self._top)
