"""What a device was told, as a value: the program that oracles, clock and explorer are run on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from tmmu.runtime.device.interface import Arena, ByteRange, Device, Event, Observer, Stream, Task, no_op


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """``work`` was put into the queue of a stream."""

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
    """What the stream is given after comes after what the event stands for here."""

    stream: int
    event: int


@dataclass(frozen=True, slots=True)
class Synchronize:
    """The host has seen the end of all that was given before."""


Command: TypeAlias = Submit | Record | Wait | Synchronize


@dataclass(frozen=True, slots=True)
class CommandLog:
    """All commands in the order in which the host issued them."""

    commands: tuple[Command, ...]

    @property
    def stream_count(self) -> int:
        """One more than the highest stream that is named."""
        return 1 + max((one.stream for one in self.commands if not isinstance(one, Synchronize)), default=-1)


class CommandRecorder:
    """An observer that keeps every command: put it beside any backend."""

    def __init__(self) -> None:
        self._commands: list[Command] = []

    def on_submit(self, number: int, stream: Stream, work: Task) -> None:
        """Kept."""
        self._commands.append(Submit(number=number, stream=stream.number, task=work))

    def on_record(self, event: Event, stream: Stream) -> None:
        """Kept."""
        self._commands.append(Record(event.number, stream.number))

    def on_wait(self, stream: Stream, event: Event) -> None:
        """Kept."""
        self._commands.append(Wait(stream.number, event.number))

    def on_synchronize(self) -> None:
        """Kept."""
        self._commands.append(Synchronize())

    def on_begin(self, number: int) -> None:
        """Not part of the program."""

    def on_end(self, number: int) -> None:
        """Not part of the program."""

    @property
    def log(self) -> CommandLog:
        """What was issued so far."""
        return CommandLog(tuple(self._commands))


class DryRunDevice(Device):
    """Does nothing and keeps what it was told; arenas are numbers."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._recording = CommandRecorder()
        super().__init__((self._recording, *observers))
        self._caller = self.create_stream("caller")

    @property
    def log(self) -> CommandLog:
        """What was issued so far."""
        return self._recording.log

    def caller_stream(self) -> Stream:
        """One stream for all callers, unless ``call_from`` names another."""
        return self._caller

    def set_caller_stream(self, stream: Stream) -> None:
        """The caller computes on this stream from now on."""
        self._caller = stream

    def close(self) -> None:
        """Nothing is held."""

    def make_copy(self, source: torch.Tensor | None, place: ByteRange) -> Callable[[], object]:
        """Nothing: there are no bytes."""
        del source, place
        return no_op

    def make_clear(self, place: ByteRange) -> Callable[[], object]:
        """Nothing: there are no bytes."""
        del place
        return no_op

    def _allocate(self, arena: Arena) -> None: ...

    def _free(self, arena: Arena) -> None: ...

    def _synchronize(self) -> None: ...

    def _create_stream(self, stream: Stream, *, urgent: bool) -> None: ...

    def _destroy_stream(self, stream: Stream) -> None: ...

    def _submit(self, number: int, stream: Stream, work: Task) -> None: ...

    def _record(self, event: Event, stream: Stream) -> None: ...

    def _wait(self, stream: Stream, event: Event) -> None: ...
