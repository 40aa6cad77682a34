"""The stack segment: the planned slab of whoever runs, above a watermark; gone, as a whole, when it has run."""

from tmmu.errors import InvalidConfig, SegmentFull
from tmmu.runtime.memory.usage import DEFAULT_ALIGNMENT, Usage, check_alignment, check_size, round_up


class StackSegment:
    """A bump pointer. ``mark`` remembers it and ``reset`` goes back, both in O(1); there are no holes."""

    def __init__(self, capacity: int, alignment: int = DEFAULT_ALIGNMENT) -> None:
        self.capacity = check_size("stack segment", capacity)
        self.alignment = check_alignment(alignment)
        self._top = 0
        self._peak = 0

    def mark(self) -> int:
        """The watermark: what lies below it stays over a ``reset`` to it."""
        return self._top

    def push(self, size: int) -> int:
        """The offset of a slab of ``size`` bytes on top, rounded up to the alignment."""
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
        offset, self._top = self._top, self._top + padded
        self._peak = max(self._peak, self._top)
        return offset

    def reset(self, mark: int) -> None:
        """Everything above the watermark is gone."""
        if not 0 <= mark <= self._top:
            raise InvalidConfig(
                f"watermark {mark} is not on the stack, whose top is {self._top}", fix="reset to a mark taken before"
            )
        self._top = mark

    @property
    def usage(self) -> Usage:
        """Used is what lies below the top; ``peak`` is the highest top so far."""
        return Usage(capacity=self.capacity, used=self._top, peak=self._peak, largest_free=self.capacity - self._top)
