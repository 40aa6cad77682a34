"""What is known of every byte of every arena: one value for each, in pieces."""

from bisect import bisect_right
from collections.abc import Iterator
from typing import Generic, TypeVar

from tmmu.runtime.device.interface import ByteRange

T = TypeVar("T")


class ShadowMemory(Generic[T]):
    """A value for each byte, ``default`` where none was assigned. Neighbours with one value may be two pieces."""

    def __init__(self, default: T) -> None:
        self._default = default
        self._arenas: dict[int, tuple[list[int], list[T]]] = {}

    def assign(self, place: ByteRange, value: T) -> None:
        """Every byte of ``place`` has this value now."""
        if place.begin < place.end:
            starts, values = self._arena(place.arena)
            low, high = _cut(starts, values, place.begin), _cut(starts, values, place.end)
            starts[low:high] = [place.begin]
            values[low:high] = [value]

    def pieces(self, place: ByteRange) -> Iterator[tuple[ByteRange, T]]:
        """The parts of ``place`` in order, each with its value; nothing may be assigned meanwhile."""
        starts, values = self._arena(place.arena)
        at, index = place.begin, bisect_right(starts, place.begin) - 1
        while at < place.end:
            end = min(place.end, starts[index + 1]) if index + 1 < len(starts) else place.end
            yield ByteRange(place.arena, at, end), values[index]
            at, index = end, index + 1

    def _arena(self, arena: int) -> tuple[list[int], list[T]]:
        """Where the pieces start, the first at 0, and their values; the last has no end."""
        return self._arenas.setdefault(arena, ([0], [self._default]))


def _cut(starts: list[int], values: list[T], at: int) -> int:
    """The index of the piece that starts at this byte, from now on."""
    index = bisect_right(starts, at) - 1
    if starts[index] == at:
        return index
    starts.insert(index + 1, at)
    values.insert(index + 1, values[index])
    return index + 1
