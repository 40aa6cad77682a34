"""Who owns which bytes: a map from disjoint half-open ranges to owners."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import TypeAlias

Owner: TypeAlias = tuple[int, int]
"""(buffer, op that put its bytes there; -1 for what is there from the start)"""


class Ownership:
    """Each byte has one owner or none. ``claim`` makes at most two pieces more and is logarithmic but for a memmove."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._pieces: dict[int, tuple[int, Owner]] = {}

    def __len__(self) -> int:
        return len(self._starts)

    def claim(self, low: int, high: int, owner: Owner) -> None:
        """Bytes ``[low, high)`` are ``owner``'s now; whoever had them keeps only what lies outside."""
        if low >= high:
            return
        starts, pieces = self._starts, self._pieces
        first, last = bisect_left(starts, low), bisect_left(starts, high)
        added = [low]
        if last:
            end, old = pieces[starts[last - 1]]
            if end > high:
                added.append(high)
                pieces[high] = (end, old)
        if first:
            begin = starts[first - 1]
            end, old = pieces[begin]
            if end > low:
                pieces[begin] = (low, old)
        for begin in starts[first:last]:
            del pieces[begin]
        starts[first:last] = added
        pieces[low] = (high, owner)

    def holds(self, low: int, high: int, owner: Owner) -> bool:
        """Whether one piece of ``owner`` covers all of ``[low, high)``."""
        index = bisect_right(self._starts, low) - 1
        if index < 0:
            return False
        end, found = self._pieces[self._starts[index]]
        return end >= high and found == owner

    def pieces(self, low: int, high: int) -> Iterator[tuple[int, int, Owner | None]]:
        """``[low, high)`` cut by owner, in order; None for bytes that nobody has claimed."""
        starts = self._starts
        index = max(bisect_right(starts, low) - 1, 0)
        at = low
        while at < high and index < len(starts):
            begin = starts[index]
            end, owner = self._pieces[begin]
            index += 1
            if begin > at:
                yield at, min(begin, high), None
                at = begin
            if end > at and at < high:
                yield at, min(end, high), owner
                at = end
        if at < high:
            yield at, high, None
