"""Shadow memory: one value for each byte of every arena, stored in runs of equal value."""

from bisect import bisect_right
from collections.abc import Iterator
from typing import Generic, TypeVar

from tmmu.runtime.device.interface import ByteRange

T = TypeVar("T")


class ShadowMemory(Generic[T]):
    """A value per byte, ``default`` where none was assigned. Adjacent pieces may have equal values.

    Per arena two parallel lists: where each piece starts (ascending, the first at 0; the last has no end), and its
    value. ``assign`` adds at most two pieces and removes those that it covers: O(log n) plus the list insertions.
    """

    def __init__(self, default: T) -> None:
        self._default = default
        self._arenas: dict[int, tuple[list[int], list[T]]] = {}

    def assign(self, place: ByteRange, value: T) -> None:
        """Gives every byte of ``place`` this value."""
        if place.begin < place.end:
            starts, values = self._arena(place.arena)
            low, high = _split(starts, values, place.begin), _split(starts, values, place.end)
            starts[low:high] = [place.begin]
            values[low:high] = [value]

    def pieces(self, place: ByteRange) -> Iterator[tuple[ByteRange, T]]:
        """The parts of ``place`` in order, each with its value. Lazy: nothing may be assigned in between."""
        starts, values = self._arena(place.arena)
        begin, index = place.begin, bisect_right(starts, place.begin) - 1
        while begin < place.end:
            end = min(place.end, starts[index + 1]) if index + 1 < len(starts) else place.end
            yield ByteRange(place.arena, begin, end), values[index]
            begin, index = end, index + 1

    def _arena(self, arena: int) -> tuple[list[int], list[T]]:
        return self._arenas.setdefault(arena, ([0], [self._default]))


def _split(starts: list[int], values: list[T], position: int) -> int:
    """The index of the piece that starts at ``position``, which is made by splitting one if need be."""
    index = bisect_right(starts, position) - 1
    if starts[index] == position:
        return index
    starts.insert(index + 1, position)
    values.insert(index + 1, values[index])
    return index + 1
