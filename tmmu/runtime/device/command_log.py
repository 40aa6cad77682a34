"""What a device was told, as a value: the program that oracles, clock and explorer are run on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from tmmu.runtime.device.interface import Arena, Device, Event, Observer, Range, Stream, Work, nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """``work`` was put into the queue of a stream."""

    number: int
    stream: int
    work: Work


@dataclass(frozen=True, slots=True)
class Recorded:
    """The event stands for all that the stream was given before."""

    event: int
    stream: int


@dataclass(frozen=True, slots=True)
class Waited:
    """What the stream is given after comes after what the event stands for here."""

    stream: int
    event: int


@dataclass(frozen=True, slots=True)
class Settled:
    """The host has seen the end of all that was given before."""


Command: TypeAlias = Submitted | Recorded | Waited | Settled


@dataclass(frozen=True, slots=True)
class Program:
    """All commands in the order in which the host issued them."""

    commands: tuple[Command, ...]

    @property
    def streams(self) -> int:
        """One more than the highest stream that is named."""
        return 1 + max((one.stream for one in self.commands if not isinstance(one, Settled)), default=-1)


class Recording:
    """An observer that keeps every command: put it beside any backend."""

    def __init__(self) -> None:
        self._commands: list[Command] = []

    def submitted(self, number: int, stream: Stream, work: Work) -> None:
        """Kept."""
        self._commands.append(Submitted(number=number, stream=stream.number, work=work))

    def recorded(self, event: Event, stream: Stream) -> None:
        """Kept."""
        self._commands.append(Recorded(event.number, stream.number))

    def waited(self, stream: Stream, event: Event) -> None:
        """Kept."""
        self._commands.append(Waited(stream.number, event.number))

    def settled(self) -> None:
        """Kept."""
        self._commands.append(Settled())

    def began(self, number: int) -> None:
        """Not part of the program."""

    def ended(self, number: int) -> None:
        """Not part of the program."""

    @property
    def program(self) -> Program:
        """What was issued so far."""
        return Program(tuple(self._commands))


class PaperDevice(Device):
    """Does nothing and keeps what it was told; arenas are numbers."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._recording = Recording()
        super().__init__((self._recording, *observers))
        self._caller = self.stream("caller")

    @property
    def program(self) -> Program:
        """What was issued so far."""
        return self._recording.program

    def caller(self) -> Stream:
        """One stream for all callers, unless ``call_from`` names another."""
        return self._caller

    def call_from(self, stream: Stream) -> None:
        """The caller computes on this stream from now on."""
        self._caller = stream

    def close(self) -> None:
        """Nothing is held."""

    def transfer(self, source: torch.Tensor | None, place: Range) -> Callable[[], object]:
        """Nothing: there are no bytes."""
        del source, place
        return nothing

    def clear(self, place: Range) -> Callable[[], object]:
        """Nothing: there are no bytes."""
        del place
        return nothing

    def _hold(self, arena: Arena) -> None: ...

    def _free(self, arena: Arena) -> None: ...

    def _settle(self) -> None: ...

    def _open(self, stream: Stream, *, urgent: bool) -> None: ...

    def _retire(self, stream: Stream) -> None: ...

    def _submit(self, number: int, stream: Stream, work: Work) -> None: ...

    def _record(self, event: Event, stream: Stream) -> None: ...

    def _wait(self, stream: Stream, event: Event) -> None: ...
