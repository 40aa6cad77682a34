"""The device interface: what the streaming loop needs of CUDA, so that other backends can stand in for it.

=========================  =========================  ===================================================
here                       CUDA                       meaning
=========================  =========================  ===================================================
``Arena``                  ``cudaMalloc``             a range of device memory, by number
``Stream``                 ``cudaStream_t``           a FIFO queue: its tasks run one after another
``Event``                  ``cudaEvent_t``            a mark in a queue: its latest record
``submit(stream, task)``   kernel launch, memcpy      returns at once; runs when the stream gets there
``record(event, stream)``  ``cudaEventRecord``        the event stands for all given to the stream so far
``wait(stream, event)``    ``cudaStreamWaitEvent``    later tasks of the stream run after that
``wait_on_host(event)``    ``cudaEventSynchronize``   the host waits for the latest record
``call_back(stream, f)``   ``cudaLaunchHostFunc``     ``f`` is called after all given to the stream so far
``synchronize()``          ``cudaDeviceSynchronize``  the host waits for all streams
=========================  =========================  ===================================================

As in CUDA, a wait captures the record that is the latest when the wait is *issued*, and a wait for an event that was
never recorded does nothing.

Beyond CUDA, every task declares the byte ranges that it reads and writes, and the content that it expects or leaves
there. The device does not need that; observers do: they judge from it whether the order of tasks is right.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import torch

Content: TypeAlias = int
"""What bytes hold, as a number of the caller's: here the index of a block, or one of the two below."""

ANY: Final[Content] = -1
"""Bytes whose content no observer checks."""
POISON: Final[Content] = -2
"""Bytes that hold nothing: whoever reads them is at fault."""


@dataclass(frozen=True, slots=True, order=True)
class ByteRange:
    """The bytes ``[begin, end)`` of an arena."""

    arena: int
    begin: int
    end: int

    def overlaps(self, other: "ByteRange") -> bool:
        """Whether the two have a byte in common."""
        return self.arena == other.arena and self.begin < other.end and other.begin < self.end


@dataclass(frozen=True, slots=True)
class Access:
    """A range that is read expecting ``content``, or written so that it holds ``content`` afterwards."""

    range: ByteRange
    content: Content = ANY


def no_op() -> None:
    """For a task that is only declared: its work happens elsewhere, or there are no bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One item of a stream's queue: a copy of ``link_bytes`` over the link, or a computation of ``compute_ns``.

    ``run`` does it. The two costs are read by simulated time alone.
    """

    name: str
    reads: tuple[Access, ...] = ()
    writes: tuple[Access, ...] = ()
    run: Callable[[], object] = field(default=no_op, compare=False)
    link_bytes: int = 0
    compute_ns: int = 0


@dataclass(frozen=True, slots=True)
class Arena:
    """``size`` bytes of device memory, by number."""

    number: int
    size: int


@dataclass(frozen=True, slots=True)
class Stream:
    """A FIFO queue of a device."""

    number: int
    name: str


@dataclass(frozen=True, slots=True)
class Event:
    """A mark in a stream's queue, moved by each record."""

    number: int


class Observer:
    """Is told of every command in the host's order; and of begins and ends by backends that can tell, from any thread.

    Tasks are numbered from 0 in the order of submission. Each method does nothing unless it is overridden.
    """

    def on_submit(self, number: int, stream: Stream, task: Task) -> None:
        """``task`` was submitted as the ``number``-th of the device."""

    def on_record(self, event: Event, stream: Stream) -> None:
        """``event`` stands for all that ``stream`` was given so far."""

    def on_wait(self, stream: Stream, event: Event) -> None:
        """What ``stream`` is given from now on runs after what ``event`` stands for."""

    def on_host_wait(self, event: Event) -> None:
        """What ``event`` stands for has ended: all that is submitted from now on, to any stream, runs after it."""

    def on_synchronize(self) -> None:
        """All that was submitted so far has ended."""

    def on_begin(self, number: int) -> None:
        """The task begins to run."""

    def on_end(self, number: int) -> None:
        """The task has run."""


class Device(ABC):
    """Commands of the host, numbered and passed on: observers are told first, then a backend carries them out.

    Backends implement the abstract methods; those with an underscore have the contract of the public method of that
    name.
    """

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._observers = tuple(observers)
        self._submitted = 0
        self._arenas: list[Arena] = []
        self._streams: list[Stream] = []
        self._events = 0

    def allocate(self, size: int) -> Arena:
        """A new arena of ``size`` bytes, contents undefined; ``DEVICE_MEMORY`` where there is no room."""
        arena = Arena(len(self._arenas), size)
        self._allocate(arena)
        self._arenas.append(arena)
        return arena

    def release(self, arena: Arena) -> None:
        """Frees the arena. Not ordered by any stream: no task that is still to run may touch it."""
        self._release(arena)

    def create_stream(self, name: str, *, urgent: bool = False) -> Stream:
        """A new stream; an ``urgent`` one has priority where the device knows priorities."""
        stream = Stream(len(self._streams), name)
        self._streams.append(stream)
        self._create_stream(stream, urgent=urgent)
        return stream

    def destroy_stream(self, stream: Stream) -> None:
        """The host waits until the stream has run all its tasks; it must not be used afterwards."""
        self._destroy_stream(stream)

    def create_event(self) -> Event:
        """A new event that was never recorded."""
        self._events += 1
        return Event(self._events - 1)

    def submit(self, stream: Stream, task: Task) -> None:
        """Appends a task to a stream: it runs after all that the stream was given and was told to wait for."""
        number = self._submitted
        self._submitted += 1
        for observer in self._observers:
            observer.on_submit(number, stream, task)
        self._submit(number, stream, task)

    def record(self, event: Event, stream: Stream) -> None:
        """From now on ``event`` stands for all that ``stream`` was given so far."""
        for observer in self._observers:
            observer.on_record(event, stream)
        self._record(event, stream)

    def wait(self, stream: Stream, event: Event) -> None:
        """What ``stream`` is given from now on runs after what ``event`` stands for at this moment."""
        for observer in self._observers:
            observer.on_wait(stream, event)
        self._wait(stream, event)

    def wait_on_host(self, event: Event) -> None:
        """The host waits until what ``event`` stands for has run; raises what failed on the device, once."""
        self._wait_on_host(event)
        for observer in self._observers:
            observer.on_host_wait(event)

    def synchronize(self) -> None:
        """The host waits until every stream has run all its tasks; raises what failed in one, once."""
        self._synchronize()
        for observer in self._observers:
            observer.on_synchronize()

    @property
    def has_observers(self) -> bool:
        """Whether it is worth declaring tasks that this device does not run itself."""
        return bool(self._observers)

    def notify_begin(self, number: int) -> None:
        """Called by a backend when a task begins to run."""
        for observer in self._observers:
            observer.on_begin(number)

    def notify_end(self, number: int) -> None:
        """Called by a backend when a task has run."""
        for observer in self._observers:
            observer.on_end(number)

    @abstractmethod
    def caller_stream(self) -> Stream:
        """The stream on which the caller's own computing is launched at this moment (``torch.cuda.current_stream``)."""

    @abstractmethod
    def close(self) -> None:
        """Ends all streams and frees all arenas. May be called twice."""

    @abstractmethod
    def make_copy(self, source: torch.Tensor | None, place: ByteRange) -> Callable[[], object]:
        """The ``run`` of a task that copies ``uint8[n]`` of the host to ``place``; ``None`` if there are no bytes."""

    @abstractmethod
    def make_move(self, source: ByteRange, target: ByteRange) -> Callable[[], object]:
        """The ``run`` of a task that copies the bytes of one arena to as many of another one, of either memory."""

    @abstractmethod
    def make_clear(self, place: ByteRange) -> Callable[[], object]:
        """The ``run`` of a task that sets every byte to 255: as a float of any width that is a NaN."""

    @abstractmethod
    def make_zero(self, place: ByteRange) -> Callable[[], object]:
        """The ``run`` of a task that sets every byte to 0."""

    @abstractmethod
    def call_back(self, stream: Stream, callback: Callable[[], object]) -> None:
        """Has ``callback`` called once, from a thread of the device's own, after all that the stream was given so far.

        After a task that failed, too. It must not wait for the device. A device that runs nothing calls nothing.
        """

    @abstractmethod
    def _allocate(self, arena: Arena) -> None: ...

    @abstractmethod
    def _release(self, arena: Arena) -> None: ...

    @abstractmethod
    def _synchronize(self) -> None: ...

    @abstractmethod
    def _create_stream(self, stream: Stream, *, urgent: bool) -> None: ...

    @abstractmethod
    def _destroy_stream(self, stream: Stream) -> None: ...

    @abstractmethod
    def _submit(self, number: int, stream: Stream, task: Task) -> None: ...

    @abstractmethod
    def _record(self, event: Event, stream: Stream) -> None: ...

    @abstractmethod
    def _wait(self, stream: Stream, event: Event) -> None: ...

    @abstractmethod
    def _wait_on_host(self, event: Event) -> None: ...
