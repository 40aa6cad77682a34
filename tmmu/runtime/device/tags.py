"""The content oracle: every reader finds the bytes that the host meant it to find, whole and of the right copy.

Every byte carries a *tag*: the number of the task that wrote it last. What a reader should find follows from the order
in which the host issued the tasks: of each byte that is read expecting some content, the latest write of that content
issued before. So a reader that is perfectly ordered and finds another block, half of one, or the copy of an earlier
pass is seen here, and only here.

State: ``IntendedContents``, per content a shadow memory of its latest writer in the host's order; and the memory as it
is, one shadow memory of tags in the order in which tasks really begin and end. A task is checked at its begin and at
its end: what it reads may not change in between. What it writes is ``TORN`` in between, so nobody else may read it.
"""

from dataclasses import dataclass
from threading import Lock
from typing import Final, TypeAlias

from tmmu.runtime.device.interface import ANY, ByteRange, Content, Observer, Stream, Task
from tmmu.runtime.device.shadow import ShadowMemory

Tag: TypeAlias = int
"""The number of the task that wrote a byte, or one of the two below."""

NEVER: Final[Tag] = -1
"""Of bytes that no task wrote."""
TORN: Final[Tag] = -2
"""Of bytes that are being written."""


@dataclass(frozen=True, slots=True)
class TaskTags:
    """The tags that a task must find (``expected``, by range), and the ranges that get its own (``written``)."""

    expected: tuple[tuple[ByteRange, Tag], ...]
    written: tuple[ByteRange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Task ``reader`` finds tag ``actual`` in ``range`` where ``expected`` should be."""

    reader: int
    range: ByteRange
    expected: Tag
    actual: Tag
    description: str


class IntendedContents:
    """What each task should find, if it is told of all tasks in the host's order."""

    def __init__(self) -> None:
        self._latest: dict[Content, ShadowMemory[Tag]] = {}

    def tags_of(self, number: int, task: Task) -> TaskTags:
        """What the ``number``-th task should find and what it writes."""
        expected = [
            piece
            for access in task.reads
            if access.content != ANY
            for piece in self._latest.setdefault(access.content, ShadowMemory(NEVER)).pieces(access.range)
        ]
        for access in task.writes:
            self._latest.setdefault(access.content, ShadowMemory(NEVER)).assign(access.range, number)
        return TaskTags(tuple(expected), tuple(access.range for access in task.writes))


def describe_tag(tag: Tag, names: dict[int, str]) -> str:
    """A tag in words."""
    return {NEVER: "nothing", TORN: "something half written"}.get(tag) or f"{names.get(tag, '?')!r}"


class TagChecker(Observer):
    """An observer that keeps the tag of every byte, and every mismatch, for backends that tell begins and ends.

    Begins and ends come from several threads, so a lock covers each.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._intended = IntendedContents()
        self._memory: ShadowMemory[Tag] = ShadowMemory(NEVER)
        self._pending: dict[int, TaskTags] = {}
        self._names: dict[int, str] = {}
        self._mismatches: list[Mismatch] = []

    @property
    def mismatches(self) -> tuple[Mismatch, ...]:
        """All so far, in the order in which they were seen."""
        return tuple(self._mismatches)

    def on_submit(self, number: int, stream: Stream, task: Task) -> None:
        """Decides what the task should find, by the host's order."""
        del stream
        with self._lock:
            self._names[number] = task.name
            self._pending[number] = self._intended.tags_of(number, task)

    def on_begin(self, number: int) -> None:
        """Checks what the task reads; what it writes is torn until it ends."""
        with self._lock:
            self._check(number)
            for place in self._pending[number].written:
                self._memory.assign(place, TORN)

    def on_end(self, number: int) -> None:
        """Checks again what the task reads; what it wrote has its tag."""
        with self._lock:
            self._check(number)
            for place in self._pending.pop(number).written:
                self._memory.assign(place, number)

    def _check(self, number: int) -> None:
        written = self._pending[number].written
        for place, expected in self._pending[number].expected:
            for part, actual in self._memory.pieces(place):
                # A task that updates in place finds its own half-written bytes at its end: that is no mismatch.
                if actual != expected and not (actual == TORN and any(part.overlaps(own) for own in written)):
                    self._mismatches.append(make_mismatch(number, part, expected, actual, self._names))


def make_mismatch(reader: int, place: ByteRange, expected: Tag, actual: Tag, names: dict[int, str]) -> Mismatch:
    """The mismatch with its description."""
    description = (
        f"{names[reader]!r} reads bytes {place.begin} to {place.end}, which should hold "
        f"{describe_tag(expected, names)} and hold {describe_tag(actual, names)}"
    )
    return Mismatch(reader=reader, range=place, expected=expected, actual=actual, description=description)
