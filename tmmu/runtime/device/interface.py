"""A device: arenas of bytes, streams that work in order, events that one stream records and another waits for.

What a stream is given says which bytes it reads and writes, so that whoever watches can judge it. An event stands for
its latest record, as in CUDA: a wait takes the record that is the latest when the wait is *issued*, and a wait for an
event that was never recorded is none. The host never waits but in ``settle``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import torch

Content = int
"""What bytes hold, as a number of the caller's: the index of a block, or one of the two below."""

ANY: Final[Content] = -1
"""Bytes whose content nobody checks."""
POISON: Final[Content] = -2
"""Bytes that nobody may read."""


@dataclass(frozen=True, slots=True, order=True)
class ByteRange:
    """The bytes ``[begin, end)`` of an arena."""

    arena: int
    begin: int
    end: int

    def overlaps(self, other: "ByteRange") -> bool:
        """Whether they have a byte in common."""
        return self.arena == other.arena and self.begin < other.end and other.begin < self.end


@dataclass(frozen=True, slots=True)
class Access:
    """A range that is read expecting ``content``, or written so that it holds ``content`` afterwards."""

    range: ByteRange
    content: Content = ANY


def no_op() -> None:
    """For work that is declared and done elsewhere, or not at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a stream does in one go. ``moved`` bytes cross the link; ``cost`` is the time in ns that computing takes."""

    name: str
    reads: tuple[Access, ...] = ()
    writes: tuple[Access, ...] = ()
    run: Callable[[], object] = field(default=no_op, compare=False)
    link_bytes: int = 0
    compute_ns: int = 0


@dataclass(frozen=True, slots=True)
class Arena:
    """Bytes on a device, by number."""

    number: int
    size: int


@dataclass(frozen=True, slots=True)
class Stream:
    """A queue of a device: what it is given runs in that order, one after another."""

    number: int
    name: str


@dataclass(frozen=True, slots=True)
class Event:
    """A mark in a stream's queue, set anew by each record."""

    number: int


class Observer(Protocol):
    """Sees what is issued, in the host's order, and on backends that can tell, when each work begins and ends."""

    def on_submit(self, number: int, stream: Stream, work: Task) -> None:
        """``work`` is the ``number``-th that the device was given."""

    def on_record(self, event: Event, stream: Stream) -> None:
        """``event`` stands for all that ``stream`` was given so far."""

    def on_wait(self, stream: Stream, event: Event) -> None:
        """What ``stream`` is given from now on comes after what ``event`` stands for."""

    def on_synchronize(self) -> None:
        """The host has seen the end of all that was given so far."""

    def on_begin(self, number: int) -> None:
        """The work runs from now."""

    def on_end(self, number: int) -> None:
        """The work has run."""


class Device(ABC):
    """What the streaming loop is written against. A backend says how; observers are told first."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._observers = tuple(observers)
        self._submitted = 0
        self._arenas: list[Arena] = []
        self._streams: list[Stream] = []
        self._events = 0

    def allocate(self, size: int) -> Arena:
        """``size`` new bytes, their content up to the caller; ``DEVICE_MEMORY`` where there are none."""
        found = Arena(len(self._arenas), size)
        self._allocate(found)
        self._arenas.append(found)
        return found

    def release(self, arena: Arena) -> None:
        """The arena's bytes are free: nothing that was given to a stream may still touch them."""
        self._free(arena)

    def create_stream(self, name: str, *, urgent: bool = False) -> Stream:
        """A new queue; an ``urgent`` one goes first where the device can choose."""
        found = Stream(len(self._streams), name)
        self._streams.append(found)
        self._create_stream(found, urgent=urgent)
        return found

    def destroy_stream(self, stream: Stream) -> None:
        """The stream has done all that it was given, and is given nothing any more."""
        self._destroy_stream(stream)

    def create_event(self) -> Event:
        """A new event, recorded nowhere yet."""
        self._events += 1
        return Event(self._events - 1)

    def submit(self, stream: Stream, work: Task) -> None:
        """``stream`` will do it after all that it was given and has been told to wait for."""
        number = self._submitted
        self._submitted += 1
        for observer in self._observers:
            observer.on_submit(number, stream, work)
        self._submit(number, stream, work)

    def record(self, event: Event, stream: Stream) -> None:
        """From now on ``event`` stands for all that ``stream`` was given so far."""
        for observer in self._observers:
            observer.on_record(event, stream)
        self._record(event, stream)

    def wait(self, stream: Stream, event: Event) -> None:
        """What ``stream`` is given from now on comes after what ``event`` stands for now."""
        for observer in self._observers:
            observer.on_wait(stream, event)
        self._wait(stream, event)

    def synchronize(self) -> None:
        """The host has waited until every stream has done all that it was given; raises what went wrong in one."""
        self._synchronize()
        for observer in self._observers:
            observer.on_synchronize()

    @property
    def has_observers(self) -> bool:
        """Whether anybody looks at what is declared."""
        return bool(self._observers)

    def notify_begin(self, number: int) -> None:
        """Told by the backend where the work begins."""
        for observer in self._observers:
            observer.on_begin(number)

    def notify_end(self, number: int) -> None:
        """Told by the backend where the work has ended."""
        for observer in self._observers:
            observer.on_end(number)

    @abstractmethod
    def caller_stream(self) -> Stream:
        """The stream that the caller's own computing goes to now."""

    @abstractmethod
    def close(self) -> None:
        """Nothing runs any more, and what the device held is free. Closing twice is closing."""

    @abstractmethod
    def make_copy(self, source: torch.Tensor | None, place: ByteRange) -> Callable[[], object]:
        """What a work runs to bring the ``uint8[n]`` of the host to ``place``; nothing where no bytes are moved."""

    @abstractmethod
    def make_clear(self, place: ByteRange) -> Callable[[], object]:
        """What a work runs to make ``place`` unreadable: every byte 255, which no float can be."""

    @abstractmethod
    def _allocate(self, arena: Arena) -> None: ...

    @abstractmethod
    def _free(self, arena: Arena) -> None: ...

    @abstractmethod
    def _synchronize(self) -> None: ...

    @abstractmethod
    def _create_stream(self, stream: Stream, *, urgent: bool) -> None: ...

    @abstractmethod
    def _destroy_stream(self, stream: Stream) -> None: ...

    @abstractmethod
    def _submit(self, number: int, stream: Stream, work: Task) -> None: ...

    @abstractmethod
    def _record(self, event: Event, stream: Stream) -> None: ...

    @abstractmethod
    def _wait(self, stream: Stream, event: Event) -> None: ...
