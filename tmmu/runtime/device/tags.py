"""The second oracle: whoever reads finds the content that the host meant, whole, and of the copy that it meant.

The host's order says what is meant: of each byte that is read expecting some content, the latest write of that content
that was issued before. So a reader that is perfectly ordered and finds another block, half of one, or the copy of an
earlier pass is seen as well.
"""

from dataclasses import dataclass
from threading import Lock
from typing import Final, TypeAlias

from tmmu.runtime.device.interface import ANY, ByteRange, Content, Event, Stream, Task
from tmmu.runtime.device.shadow import ShadowMemory

Tag: TypeAlias = int
"""The number of the work that wrote a byte, or one of the two below."""

NEVER: Final[Tag] = -1
"""Of bytes that nobody wrote."""
TORN: Final[Tag] = -2
"""Of bytes that are being written."""


@dataclass(frozen=True, slots=True)
class TaskTags:
    """Per range, the tag that it must have (``expects``), and the ranges that get the work's own number."""

    expected: tuple[tuple[ByteRange, Tag], ...]
    written: tuple[ByteRange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Work ``reader`` found ``found`` in ``range`` where ``expected`` should be; all three are numbers of works."""

    reader: int
    range: ByteRange
    expected: Tag
    actual: Tag
    what: str


class IntendedContents:
    """What each work should find, told of all works in the host's order."""

    def __init__(self) -> None:
        self._latest: dict[Content, ShadowMemory[Tag]] = {}

    def tags_of(self, number: int, work: Task) -> TaskTags:
        """What the ``number``-th work expects and brings."""
        expects = [
            piece
            for access in work.reads
            if access.content != ANY
            for piece in self._latest.setdefault(access.content, ShadowMemory(NEVER)).pieces(access.range)
        ]
        for access in work.writes:
            self._latest.setdefault(access.content, ShadowMemory(NEVER)).assign(access.range, number)
        return TaskTags(tuple(expects), tuple(access.range for access in work.writes))


def describe_tag(tag: Tag, names: dict[int, str]) -> str:
    """A tag in words."""
    return {NEVER: "nothing", TORN: "something half written"}.get(tag) or f"{names.get(tag, '?')!r}"


class TagChecker:
    """An observer that keeps the tag of every byte, and every mismatch; for backends that tell of begins and ends.

    A reader is checked when it begins and when it ends; what it reads may not change between.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._intent = IntendedContents()
        self._memory: ShadowMemory[Tag] = ShadowMemory(NEVER)
        self._pending: dict[int, TaskTags] = {}
        self._names: dict[int, str] = {}
        self._mismatches: list[Mismatch] = []

    @property
    def mismatches(self) -> tuple[Mismatch, ...]:
        """All so far, in the order in which they were seen."""
        return tuple(self._mismatches)

    def on_submit(self, number: int, stream: Stream, work: Task) -> None:
        """Its expectations are settled."""
        del stream
        with self._lock:
            self._names[number] = work.name
            self._pending[number] = self._intent.tags_of(number, work)

    def on_record(self, event: Event, stream: Stream) -> None:
        """Says nothing about contents."""

    def on_wait(self, stream: Stream, event: Event) -> None:
        """Says nothing about contents."""

    def on_synchronize(self) -> None:
        """Says nothing about contents."""

    def on_begin(self, number: int) -> None:
        """What it reads is right now; what it writes is nobody's until it ends."""
        with self._lock:
            self._check(number)
            for place in self._pending[number].written:
                self._memory.assign(place, TORN)

    def on_end(self, number: int) -> None:
        """What it reads is still right; what it wrote is its own, where nobody else is at it."""
        with self._lock:
            self._check(number)
            for place in self._pending.pop(number).written:
                self._memory.assign(place, number)

    def _check(self, number: int) -> None:
        written = self._pending[number].written
        for place, expected in self._pending[number].expected:
            for part, found in self._memory.pieces(place):
                if found != expected and not (found == TORN and any(part.overlaps(own) for own in written)):
                    self._mismatches.append(make_mismatch(number, part, expected, found, self._names))


def make_mismatch(reader: int, place: ByteRange, expected: Tag, found: Tag, names: dict[int, str]) -> Mismatch:
    """The fault, in words too."""
    what = (
        f"{names[reader]!r} reads bytes {place.begin} to {place.end}, which should hold "
        f"{describe_tag(expected, names)} and hold {describe_tag(found, names)}"
    )
    return Mismatch(reader=reader, range=place, expected=expected, actual=found, what=what)
