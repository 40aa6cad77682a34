"""Byte ownership: a map from disjoint half-open byte ranges to owners, whatever an owner is.

State: the sorted starts of all ranges, and per start its end and owner. Invariants: ranges are not empty and do not
overlap; neighbours of one owner may touch and are not merged. ``claim`` keeps them by cutting what it overlaps: at most
the range that begins before it and the range that ends after it survive, each shortened, and all between them go. So
a claim adds at most two ranges, and n claims leave fewer than 2n.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Generic, TypeVar

Owner = TypeVar("Owner")


class Ownership(Generic[Owner]):
    """Each byte has one owner or none. ``claim`` and lookups are logarithmic, but for the memmove of a list."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ranges: dict[int, tuple[int, Owner]] = {}

    def __len__(self) -> int:
        return len(self._starts)

    def claim(self, low: int, high: int, owner: Owner) -> None:
        """Bytes ``[low, high)`` are ``owner``'s from now on; earlier owners keep what lies outside."""
        if low >= high:
            return
        starts, ranges = self._starts, self._ranges
        first, last = bisect_left(starts, low), bisect_left(starts, high)
        added = [low]
        # The tail beyond ``high`` is saved first: the range that it ends may be the one that is cut at ``low``.
        if last:
            end, previous = ranges[starts[last - 1]]
            if end > high:
                added.append(high)
                ranges[high] = (end, previous)
        if first:
            begin = starts[first - 1]
            end, previous = ranges[begin]
            if end > low:
                ranges[begin] = (low, previous)
        for begin in starts[first:last]:
            del ranges[begin]
        starts[first:last] = added
        ranges[low] = (high, owner)

    def is_owned_by(self, low: int, high: int, owner: Owner) -> bool:
        """Whether a single range of ``owner`` covers ``[low, high)``; where several do, only ``pieces`` tells."""
        index = bisect_right(self._starts, low) - 1
        if index < 0:
            return False
        end, holder = self._ranges[self._starts[index]]
        return end >= high and holder == owner

    def pieces(self, low: int, high: int) -> Iterator[tuple[int, int, Owner | None]]:
        """``[low, high)`` cut by owner, in order; ``None`` for bytes that were never claimed."""
        starts = self._starts
        index = max(bisect_right(starts, low) - 1, 0)
        position = low
        while position < high and index < len(starts):
            begin = starts[index]
            end, owner = self._ranges[begin]
            index += 1
            if begin > position:
                yield position, min(begin, high), None
                position = begin
            if end > position and position < high:
                yield position, min(end, high), owner
                position = end
        if position < high:
            yield position, high, None
