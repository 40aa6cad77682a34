"""The text segment: weights by content key, written once, shared by all executors that hold them.

State: entries by key, each with a reference count, and the ranges that they take. Invariants: entries are disjoint; an
entry never moves, and its bytes are not written after ``load`` returns. An entry whose count falls to 0 stays, to be
found again; only a load that finds no gap drops such entries, that first which was released first, until it fits.
For any thread: a content is written once, and whoever else loads it waits until it is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from threading import RLock

from tmmu.errors import InvalidConfig, SegmentFull
from tmmu.runtime.memory.byte_ranges import ByteRanges
from tmmu.runtime.memory.usage import DEFAULT_ALIGNMENT, Usage, check_alignment, check_size, round_up


@dataclass(slots=True)
class _Entry:
    offset: int
    size: int
    references: int


class TextSegment:
    """Contents by key, each in the lowest gap that was long enough for it."""

    def __init__(self, capacity: int, alignment: int = DEFAULT_ALIGNMENT) -> None:
        self.capacity = check_size("text segment", capacity)
        self.alignment = check_alignment(alignment)
        self._entries: dict[bytes, _Entry] = {}
        self._unused: dict[bytes, None] = {}
        self._ranges: ByteRanges[bytes] = ByteRanges(self.capacity)
        self._lock = RLock()

    def load(self, key: bytes, size: int, write: Callable[[int], None]) -> int:
        """Byte offset of the content ``key``, with one reference more; new content is written by ``write(offset)``.

        If ``write`` raises, nothing is loaded. ``SEGMENT_FULL`` where it does not fit.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                entry = self._place(key, check_size("content", size))
                try:
                    write(entry.offset)
                except BaseException:
                    self._drop(key)
                    raise
            elif entry.size != size:
                raise InvalidConfig(
                    f"content {key.hex()[:16]} has {entry.size} bytes here, not {size}",
                    fix="give other contents another key",
                    bytes=size,
                    loaded=entry.size,
                )
            entry.references += 1
            self._unused.pop(key, None)
            return entry.offset

    def release(self, key: bytes) -> int:
        """Drops one reference; returns how many are left."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or entry.references == 0:
                raise InvalidConfig(f"nobody holds content {key.hex()[:16]}", fix="release once for each load")
            entry.references -= 1
            if entry.references == 0:
                self._unused[key] = None
            return entry.references

    def drop_unused(self) -> None:
        """Forgets contents that nobody holds, whose ranges are free then."""
        with self._lock:
            for key in list(self._unused):
                self._drop(key)

    def references(self, key: bytes) -> int:
        """The reference count of a content; 0 for one that is not loaded."""
        return self._entries[key].references if key in self._entries else 0

    @property
    def usage(self) -> Usage:
        """``used`` counts what nobody holds any more, and is still there, too."""
        taken = self._ranges
        return Usage(capacity=self.capacity, used=taken.used, peak=taken.peak, largest_free=taken.largest_free)

    def _place(self, key: bytes, size: int) -> _Entry:
        padded = round_up(size, self.alignment)
        offset = self._ranges.take(padded, key)
        while offset is None and self._unused:
            self._drop(next(iter(self._unused)))
            offset = self._ranges.take(padded, key)
        if offset is None:
            usage = self.usage
            raise SegmentFull(
                f"the text segment has no {padded} bytes in one piece for these weights: "
                f"{usage.free} of {self.capacity} are free, {usage.largest_free} at most together",
                fix="give text a larger share, or release a model",
                segment="text",
                bytes=padded,
                free=usage.free,
                largest_free=usage.largest_free,
                capacity=self.capacity,
            )
        entry = self._entries[key] = _Entry(offset=offset, size=size, references=0)
        return entry

    def _drop(self, key: bytes) -> None:
        entry = self._entries.pop(key)
        self._unused.pop(key, None)
        self._ranges.free(entry.offset, round_up(entry.size, self.alignment))
