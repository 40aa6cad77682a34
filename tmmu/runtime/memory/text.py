"""The text segment: weights by content key, written once, shared by all executors that hold them.

State: entries in the order of their offsets, each with a reference count, and the append point. Invariants: entries are
contiguous from 0 to the append point, so there are no holes; an entry never moves, and its bytes are not written after
``load`` returns. An entry whose count falls to 0 stays, to be found again; only a load that needs the bytes drops such
entries, from the append point down, and stops at the first that is held.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tmmu.errors import InvalidConfig, SegmentFull
from tmmu.runtime.memory.usage import DEFAULT_ALIGNMENT, Usage, check_alignment, check_size, round_up


@dataclass(slots=True)
class _Entry:
    offset: int
    size: int
    references: int


class TextSegment:
    """Contents by key. Append-only; bytes come back at the append point alone."""

    def __init__(self, capacity: int, alignment: int = DEFAULT_ALIGNMENT) -> None:
        self.capacity = check_size("text segment", capacity)
        self.alignment = check_alignment(alignment)
        self._entries: dict[bytes, _Entry] = {}
        self._end = 0
        self._peak = 0

    def load(self, key: bytes, size: int, write: Callable[[int], None]) -> int:
        """Byte offset of the content ``key``, with one reference more; new content is written by ``write(offset)``.

        If ``write`` raises, nothing is loaded. ``SEGMENT_FULL`` where it does not fit.
        """
        entry = self._entries.get(key)
        if entry is None:
            entry = self._append(key, check_size("content", size))
            try:
                write(entry.offset)
            except BaseException:
                self._drop_last()
                raise
        elif entry.size != size:
            raise InvalidConfig(
                f"content {key.hex()[:16]} has {entry.size} bytes here, not {size}",
                fix="give other contents another key",
                bytes=size,
                loaded=entry.size,
            )
        entry.references += 1
        return entry.offset

    def release(self, key: bytes) -> int:
        """Drops one reference; returns how many are left."""
        entry = self._entries.get(key)
        if entry is None or entry.references == 0:
            raise InvalidConfig(f"nobody holds content {key.hex()[:16]}", fix="release once for each load")
        entry.references -= 1
        return entry.references

    def references(self, key: bytes) -> int:
        """The reference count of a content; 0 for one that is not loaded."""
        return self._entries[key].references if key in self._entries else 0

    @property
    def usage(self) -> Usage:
        """``used`` is all below the append point; the free bytes are one run."""
        return Usage(capacity=self.capacity, used=self._end, peak=self._peak, largest_free=self.capacity - self._end)

    def _append(self, key: bytes, size: int) -> _Entry:
        padded = round_up(size, self.alignment)
        # Only from the end: an entry below one that is held cannot be dropped without leaving a hole.
        while self._end + padded > self.capacity and self._last_is_unused():
            self._drop_last()
        if self._end + padded > self.capacity:
            raise SegmentFull(
                f"the text segment has {self.capacity - self._end} of {self.capacity} bytes left, "
                f"and these weights need {padded}",
                fix="give text a larger share, or release a model",
                segment="text",
                bytes=padded,
                free=self.capacity - self._end,
                capacity=self.capacity,
            )
        entry = self._entries[key] = _Entry(offset=self._end, size=size, references=0)
        self._end += padded
        self._peak = max(self._peak, self._end)
        return entry

    def _last_is_unused(self) -> bool:
        return bool(self._entries) and self._entries[next(reversed(self._entries))].references == 0

    def _drop_last(self) -> None:
        _, entry = self._entries.popitem()  # a dict keeps the order of insertion, which is that of offsets
        self._end = entry.offset
