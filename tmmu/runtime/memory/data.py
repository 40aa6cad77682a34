"""The data segment: one arena per session, reserved whole, filled by a bump pointer, reclaimed whole.

State: the arenas by session, and those with bytes as (begin, end, session) in address order. Invariants: arenas are
disjoint, inside the capacity, and multiples of the alignment; ``used <= size`` in each. Gaps are not stored but are
what lies between neighbours in address order, so two adjacent gaps are always one and nothing needs merging.
"""

from bisect import insort
from dataclasses import dataclass
from typing import Final

from tmmu.errors import InvalidConfig, SegmentFull, SessionUnknown
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
        self._order: list[tuple[int, int, str]] = []
        self._used = 0
        self._peak = 0

    def reserve(self, session: str, size: int) -> int:
        """Byte offset of a new, empty arena of ``size`` bytes, rounded up to the alignment; or ``SEGMENT_FULL``."""
        padded = round_up(check_size(f"session {session!r}", size), self.alignment)
        if session in self._arenas:
            raise InvalidConfig(f"session {session!r} has its arena already", fix="reclaim it first", session=session)
        if self.quota and padded > self.quota:
            raise self._full(f"session {session!r} asks for {padded} bytes, above its quota of {self.quota}", padded)
        base = next((low for low, high in self._gaps() if high - low >= padded), None)
        if base is None:
            usage = self.usage
            message = (
                f"the data segment has no {padded} bytes in one piece for session {session!r}: "
                f"{usage.free} of {self.capacity} are free, {usage.largest_free} at most together"
            )
            raise self._full(message, padded)
        self._arenas[session] = _Arena(base=base, size=padded)
        if padded:  # an empty arena has no bytes, and must not split a gap
            insort(self._order, (base, base + padded, session))
        self._used += padded
        self._peak = max(self._peak, self._used)
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
        if arena.size:
            self._order.remove((arena.base, arena.base + arena.size, session))
        self._used -= arena.size
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
        largest = max((high - low for low, high in self._gaps()), default=0)
        return Usage(capacity=self.capacity, used=self._used, peak=self._peak, largest_free=largest)

    def _gaps(self) -> list[tuple[int, int]]:
        """Free (begin, end) ranges by address; the last may be empty, so that an arena of 0 bytes always fits."""
        low, gaps = 0, []
        for base, end, _ in self._order:
            if base > low:
                gaps.append((low, base))
            low = end
        return [*gaps, (low, self.capacity)]

    def _arena(self, session: str) -> _Arena:
        if session not in self._arenas:
            raise SessionUnknown(f"no session {session!r} is open", fix="reserve its arena first", session=session)
        return self._arenas[session]

    def _full(self, message: str, size: int) -> SegmentFull:
        usage = self.usage
        return SegmentFull(
            message,
            fix="end a session, or give data a larger share",
            segment="data",
            bytes=size,
            free=usage.free,
            largest_free=usage.largest_free,
            capacity=self.capacity,
        )
