"""The data segment: one arena per session, reserved whole, filled by a bump pointer, reclaimed whole.

State: the arenas by session, and the ranges that they take. Invariants: arenas are disjoint, inside the capacity, and
multiples of the alignment; ``used <= size`` in each.
"""

from dataclasses import dataclass
from typing import Final

from tmmu.errors import InvalidConfig, SegmentFull, SessionUnknown
from tmmu.runtime.memory.byte_ranges import ByteRanges
from tmmu.runtime.memory.usage import DEFAULT_ALIGNMENT, Usage, check_alignment, check_size, round_up

NO_QUOTA: Final = 0


@dataclass(slots=True)
class _Arena:
    base: int
    size: int
    used: int = 0


class DataSegment:
    """Arenas of sessions, first fit: a reservation gets the lowest gap that is long enough.

    ``quota`` bounds the bytes of each arena; 0 is no bound beyond the capacity. Reserving is O(sessions).
    """

    def __init__(self, capacity: int, quota: int = NO_QUOTA, alignment: int = DEFAULT_ALIGNMENT) -> None:
        self.capacity = check_size("data segment", capacity)
        self.quota = check_size("session quota", quota)
        self.alignment = check_alignment(alignment)
        self._arenas: dict[str, _Arena] = {}
        self._ranges: ByteRanges[str] = ByteRanges(self.capacity)
        self.changes = 0
        """Arenas that were reserved and reclaimed so far."""

    def reserve(self, session: str, size: int) -> int:
        """Byte offset of a new, empty arena of ``size`` bytes, rounded up to the alignment; or ``SEGMENT_FULL``."""
        padded = round_up(check_size(f"session {session!r}", size), self.alignment)
        if session in self._arenas:
            raise InvalidConfig(f"session {session!r} has its arena already", fix="reclaim it first", session=session)
        if self.quota and padded > self.quota:
            raise self._full(f"session {session!r} asks for {padded} bytes, above its quota of {self.quota}", padded)
        base = self._ranges.take(padded, session)
        if base is None:
            usage = self.usage
            message = (
                f"the data segment has no {padded} bytes in one piece for session {session!r}: "
                f"{usage.free} of {self.capacity} are free, {usage.largest_free} at most together"
            )
            raise self._full(message, padded)
        self._arenas[session] = _Arena(base=base, size=padded)
        self.changes += 1
        return base

    def bump(self, session: str, size: int, alignment: int = 1) -> int:
        """Byte offset of ``size`` more bytes of the session's arena; they stay until it is reclaimed."""
        arena = self._arena(session)
        start = round_up(arena.base + arena.used, check_alignment(alignment))
        end = start + check_size(f"session {session!r}", size)
        if end > arena.base + arena.size:
            free = arena.size - arena.used
            message = f"session {session!r} has {free} of its {arena.size} bytes left, and {size} are asked for"
            raise self._full(message, size)
        arena.used = end - arena.base
        return start

    def reclaim(self, session: str) -> int:
        """Frees the session's arena; returns its bytes."""
        arena = self._arena(session)
        del self._arenas[session]
        self._ranges.free(arena.base, arena.size)
        self.changes += 1
        return arena.size

    def used_bytes(self, session: str) -> int:
        """Bytes of the session's arena below its bump pointer."""
        return self._arena(session).used

    @property
    def sessions(self) -> tuple[str, ...]:
        """The open sessions, sorted by name."""
        return tuple(sorted(self._arenas))

    @property
    def usage(self) -> Usage:
        """``used`` is what is reserved; free bytes may be in several gaps."""
        taken = self._ranges
        return Usage(capacity=self.capacity, used=taken.used, peak=taken.peak, largest_free=taken.largest_free)

    def _arena(self, session: str) -> _Arena:
        if session not in self._arenas:
            raise SessionUnknown(f"no session {session!r} is open", fix="reserve its arena first", session=session)
        return self._arenas[session]

    def _full(self, message: str, size: int) -> SegmentFull:
        usage = self.usage
        return SegmentFull(
            message,
            fix="close a session, or make the data segment larger: budget=, heap= or host= of an engine",
            segment="data",
            bytes=size,
            free=usage.free,
            largest_free=usage.largest_free,
            capacity=self.capacity,
        )
