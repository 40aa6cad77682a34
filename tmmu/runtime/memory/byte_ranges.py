"""Byte ranges of a segment that are taken, in address order, and the gaps between them."""

from bisect import bisect_left, insort
from operator import itemgetter
from typing import Generic, TypeVar

Owner = TypeVar("Owner")


class ByteRanges(Generic[Owner]):
    """Disjoint ranges inside ``[0, capacity)``, each with its owner. Taking and freeing are linear in their number.

    Gaps are not stored but are what lies between neighbours, so two adjacent gaps are always one.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._ranges: list[tuple[int, int, Owner]] = []
        self.used = 0
        self.peak = 0

    def take(self, size: int, owner: Owner) -> int | None:
        """The first byte of the lowest gap of ``size`` bytes, now the owner's; ``None`` where there is none."""
        base = next((low for low, high in self.gaps() if high - low >= size), None)
        if base is not None and size:  # a range without bytes must not split a gap
            insort(self._ranges, (base, base + size, owner), key=itemgetter(0))
            self.used += size
            self.peak = max(self.peak, self.used)
        return base

    def free(self, base: int, size: int) -> None:
        """Gives back what was taken there."""
        if size:
            del self._ranges[bisect_left(self._ranges, base, key=itemgetter(0))]
            self.used -= size

    def gaps(self) -> list[tuple[int, int]]:
        """Free (begin, end) ranges by address; the last may be empty, so that a range of 0 bytes always fits."""
        low, gaps = 0, []
        for base, end, _ in self._ranges:
            if base > low:
                gaps.append((low, base))
            low = end
        return [*gaps, (low, self.capacity)]

    @property
    def largest_free(self) -> int:
        """Bytes of the longest gap."""
        lengths = [high - low for low, high in self.gaps()]
        return max(lengths)
