"""The commands that a device was given, as a value: what the oracles, the explorer and simulated time work on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from tmmu.runtime.device.interface import Arena, ByteRange, Device, Event, Observer, Stream, Task, no_op


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """``task`` was appended to a stream, as the ``number``-th of the device."""

    number: int
    stream: int
    task: Task


@dataclass(frozen=True, slots=True)
class Record:
    """The event stands for all that the stream was given before."""

    event: int
    stream: int


@dataclass(frozen=True, slots=True)
class Wait:
    """What the stream is given later runs after what the event stands for here."""

    stream: int
    event: int


@dataclass(frozen=True, slots=True)
class HostWait:
    """The host waited for what the event stands for here, before it submitted what comes later."""

    event: int


@dataclass(frozen=True, slots=True)
class Synchronize:
    """The host waited for the end of all that was submitted before."""


Command: TypeAlias = Submit | Record | Wait | HostWait | Synchronize


@dataclass(frozen=True, slots=True)
class CommandLog:
    """All commands in the order in which the host issued them."""

    commands: tuple[Command, ...]

    @property
    def stream_count(self) -> int:
        """One more than the highest stream that a command names."""
        return 1 + max((c.stream for c in self.commands if not isinstance(c, (HostWait, Synchronize))), default=-1)


class CommandRecorder(Observer):
    """An observer that keeps every command; it works with any backend."""

    def __init__(self) -> None:
        self._commands: list[Command] = []

    def on_submit(self, number: int, stream: Stream, task: Task) -> None:
        """Appends a ``Submit``."""
        self._commands.append(Submit(number=number, stream=stream.number, task=task))

    def on_record(self, event: Event, stream: Stream) -> None:
        """Appends a ``Record``."""
        self._commands.append(Record(event.number, stream.number))

    def on_wait(self, stream: Stream, event: Event) -> None:
        """Appends a ``Wait``."""
        self._commands.append(Wait(stream.number, event.number))

    def on_host_wait(self, event: Event) -> None:
        """Appends a ``HostWait``."""
        self._commands.append(HostWait(event.number))

    def on_synchronize(self) -> None:
        """Appends a ``Synchronize``."""
        self._commands.append(Synchronize())

    @property
    def log(self) -> CommandLog:
        """The commands so far."""
        return CommandLog(tuple(self._commands))


class DryRunDevice(Device):
    """Keeps its commands and carries none out: tasks do not run, and arenas have no bytes."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._recorder = CommandRecorder()
        super().__init__((self._recorder, *observers))
        self._caller = self.create_stream("caller")

    @property
    def log(self) -> CommandLog:
        """The commands so far."""
        return self._recorder.log

    def caller_stream(self) -> Stream:
        """The stream "caller", or the one that ``set_caller_stream`` named last."""
        return self._caller

    def set_caller_stream(self, stream: Stream) -> None:
        """The caller computes on this stream from now on, as in ``with torch.cuda.stream(...)``."""
        self._caller = stream

    def close(self) -> None:
        """There is nothing to free."""

    def make_copy(self, source: torch.Tensor | None, place: ByteRange) -> Callable[[], object]:
        """Nothing: there are no bytes."""
        del source, place
        return no_op

    def make_move(self, source: ByteRange, target: ByteRange) -> Callable[[], object]:
        """Nothing: there are no bytes."""
        del source, target
        return no_op

    def make_clear(self, place: ByteRange) -> Callable[[], object]:
        """Nothing: there are no bytes."""
        del place
        return no_op

    def make_zero(self, place: ByteRange) -> Callable[[], object]:
        """Nothing: there are no bytes."""
        del place
        return no_op

    def call_back(self, stream: Stream, callback: Callable[[], object]) -> None:
        """Nothing: whoever drives a dry run says when a stream gets somewhere."""

    def _allocate(self, arena: Arena) -> None: ...

    def _release(self, arena: Arena) -> None: ...

    def _synchronize(self) -> None: ...

    def _create_stream(self, stream: Stream, *, urgent: bool) -> None: ...

    def _destroy_stream(self, stream: Stream) -> None: ...

    def _submit(self, number: int, stream: Stream, task: Task) -> None: ...

    def _record(self, event: Event, stream: Stream) -> None: ...

    def _wait(self, stream: Stream, event: Event) -> None: ...

    def _wait_on_host(self, event: Event) -> None: ...
