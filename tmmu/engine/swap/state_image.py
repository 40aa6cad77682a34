"""The image of a session's state on the host: which bytes of which tensor it has, and where.

Tensors are copied each from its first byte on: of those that grow, positions that were read do not change, so that an
image is brought up to date by what was read since. What recurs is copied anew once it has changed, and all of a state
that begins anew with another source.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tmmu.engine.geometry import Geometry, StateLengths
from tmmu.engine.swap.host_tier import HostRange, HostTier


@dataclass(frozen=True, slots=True)
class StatePiece:
    """``size`` bytes of a tensor, by its index in the geometry, from ``start`` on; the host has them at ``offset``."""

    tensor: int
    start: int
    offset: int
    size: int

    def part(self, begin: int, end: int) -> "StatePiece":
        """Its bytes ``[begin, end)``."""
        return StatePiece(self.tensor, self.start + begin, self.offset + begin, end - begin)


class StateImage:
    """The pieces of one session, in the order in which they were copied, and so in which they come back."""

    def __init__(self, geometry: Geometry) -> None:
        self._tensors = geometry.arena_tensors
        self._copied = [0] * len(self._tensors)
        self._ranges: dict[bool, list[HostRange]] = {True: [], False: []}
        """Of tensors that grow, and of what recurs: no range has bytes of both."""
        self.pieces: list[StatePiece] = []

    def live_bytes(self, lengths: StateLengths) -> int:
        """Bytes of a state of so many positions; 0 before the first, when all of it is zeros."""
        is_empty = lengths == StateLengths(0, 0)
        return 0 if is_empty else sum(tensor.bytes_for(lengths) for tensor in self._tensors)

    def extend(self, lengths: StateLengths, size: int, tier: HostTier) -> list[StatePiece]:
        """Room for the next ``size`` bytes of the state that the image lacks; their pieces, which are to be copied."""
        spans: dict[bool, list[tuple[int, int, int]]] = {True: [], False: []}
        for index, tensor in enumerate(self._tensors):
            count = min(size, tensor.bytes_for(lengths) - self._copied[index])
            if count > 0:
                spans[tensor.grows].append((index, self._copied[index], count))
                self._copied[index] += count
                size -= count
        pieces: list[StatePiece] = []
        for grows, rows in spans.items():
            ranges = tier.take(sum(count for *_, count in rows))
            self._ranges[grows] += ranges
            pieces += _laid_out(rows, ranges)
        self.pieces += pieces
        return pieces

    def between(self, begin: int, end: int) -> Iterator[StatePiece]:
        """Bytes ``[begin, end)`` of all pieces one after another."""
        low = 0
        for piece in self.pieces:
            high = low + piece.size
            if max(begin, low) < min(end, high):
                yield piece.part(max(begin, low) - low, min(end, high) - low)
            low = high

    def forget_changed(self) -> list[HostRange]:
        """Takes out what a step has changed: what recurs; the ranges that held it."""
        return self._take_out(grows=False)

    def forget(self) -> list[HostRange]:
        """Takes out all; the ranges that held it."""
        return self._take_out(grows=False) + self._take_out(grows=True)

    def _take_out(self, *, grows: bool) -> list[HostRange]:
        ranges, self._ranges[grows] = self._ranges[grows], []
        if ranges:
            self.pieces = [piece for piece in self.pieces if self._tensors[piece.tensor].grows != grows]
            for index, tensor in enumerate(self._tensors):
                if tensor.grows == grows:
                    self._copied[index] = 0
        return ranges


def _laid_out(spans: Sequence[tuple[int, int, int]], ranges: Sequence[HostRange]) -> Iterator[StatePiece]:
    """Pieces of (tensor, start, bytes), one after another in ranges of as many bytes together."""
    remaining = iter(ranges)
    offset, room = 0, 0
    for tensor, start, count in spans:
        done = 0
        while done < count:
            if not room:
                host_range = next(remaining)
                offset, room = host_range.offset, host_range.size
            size = min(room, count - done)
            yield StatePiece(tensor, start + done, offset, size)
            done, offset, room = done + size, offset + size, room - size
