"""Free lists for a sweep over time: by address (first fit), and by size as well (best fit).

State: the free ranges in ascending order, as two parallel lists. Invariants: ranges are disjoint and never adjacent
(``release`` merges neighbours), and the last one reaches beyond every offset in use, so that a request always fits.
Cost: ``take_lowest`` and ``take_highest`` scan the gaps, ``take_tightest`` and ``release`` bisect; inserting in a list
moves memory, which at the sizes in question is cheaper than a balanced tree.
"""

from bisect import bisect_left, insort

from tmmu.errors import InternalError


class Gaps:
    """Free ranges ``[start, end)``, ascending, never adjacent, the last one as good as endless. Mutable."""

    def __init__(self, end: int) -> None:
        self.start: list[int] = []
        self.end: list[int] = []
        self._insert(0, 0, end)

    def take_lowest(self, size: int) -> int:
        """Allocate the lowest ``size`` contiguous free bytes; their offset. O(gaps below)."""
        for index, (start, end) in enumerate(zip(self.start, self.end, strict=True)):
            if end - start >= size:
                return self._cut(index, start, size)
        raise InternalError("the last gap has an end")

    def take_highest(self, size: int, ceiling: int) -> int:
        """Allocate the highest ``size`` free bytes that end at ``ceiling`` or below; the lowest ones where none do."""
        for index in range(len(self.start) - 1, -1, -1):
            offset = min(self.end[index], ceiling) - size
            if offset >= self.start[index]:
                return self._cut(index, offset, size)
        return self.take_lowest(size)

    def release(self, offset: int, size: int) -> None:
        """Free ``[offset, offset + size)``, merged with free neighbours."""
        # Merging keeps gaps apart by at least one byte in use: a gap list of n live items has at most n + 1 gaps.
        stop = offset + size
        index = bisect_left(self.start, offset)
        if index < len(self.start) and self.start[index] == stop:
            stop = self._remove(index)[1]
        if index > 0 and self.end[index - 1] == offset:
            index -= 1
            offset = self._remove(index)[0]
        self._insert(index, offset, stop)

    def _cut(self, index: int, offset: int, size: int) -> int:
        start, end = self._remove(index)
        if offset + size < end:
            self._insert(index, offset + size, end)
        if offset > start:
            self._insert(index, start, offset)
        return offset

    def _insert(self, index: int, start: int, end: int) -> None:
        self.start.insert(index, start)
        self.end.insert(index, end)

    def _remove(self, index: int) -> tuple[int, int]:
        return self.start.pop(index), self.end.pop(index)


class SizedGaps(Gaps):
    """Gaps with an index by (size, start): best fit in O(log gaps) and a memory move."""

    def __init__(self, end: int) -> None:
        self.by_size: list[tuple[int, int]] = []
        super().__init__(end)

    def take_tightest(self, size: int) -> int:
        """Allocate at the start of the smallest gap of at least ``size`` bytes, the lowest of equals; its offset."""
        start = self.by_size[bisect_left(self.by_size, (size, -1))][1]
        return self._cut(bisect_left(self.start, start), start, size)

    def _insert(self, index: int, start: int, end: int) -> None:
        super()._insert(index, start, end)
        insort(self.by_size, (end - start, start))

    def _remove(self, index: int) -> tuple[int, int]:
        start, end = super()._remove(index)
        del self.by_size[bisect_left(self.by_size, (end - start, start))]
        return start, end
