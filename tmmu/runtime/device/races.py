"""The first oracle: two accesses of one byte, one of them a write, have an order, or the program is wrong.

Vector clocks over streams and events (Lamport 1978, Fidge 1988). Nothing is run: what a program's commands order is
ordered in every run, and what they leave open can go wrong in one, even if it never did.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from tmmu.runtime.device.command_log import CommandLog, Record, Submit, Synchronize, Wait
from tmmu.runtime.device.interface import ByteRange, Task
from tmmu.runtime.device.shadow import ShadowMemory

Clock: TypeAlias = tuple[int, ...]
"""Per stream, how many of its works are known to be over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """Works ``first`` and ``second``, by number, meet in ``range``, and nothing orders them."""

    first: int
    second: int
    range: ByteRange
    what: str


@dataclass(frozen=True, slots=True)
class _Touch:
    """One access: by which work, and when in its stream."""

    work: int
    stream: int
    at: int


@dataclass(frozen=True, slots=True)
class _Past:
    """Of one byte: its last write, and who read it since."""

    write: _Touch | None
    reads: tuple[_Touch, ...]


def races(program: CommandLog) -> tuple[Race, ...]:
    """Every pair of conflicting accesses that no event, queue or settling orders, by the later of the two."""
    streams = program.stream_count
    clocks: list[Clock] = [(0,) * streams for _ in range(streams)]
    events: dict[int, Clock] = {}
    past: ShadowMemory[_Past] = ShadowMemory(_Past(None, ()))
    names: dict[int, str] = {}
    found: dict[tuple[int, int], Race] = {}
    for command in program.commands:
        match command:
            case Submit(number=number, stream=stream, task=work):
                names[number] = work.name
                clock = clocks[stream]
                for first, place, how in _conflicts(past, work, _Touch(number, stream, clock[stream] + 1), clock):
                    pair = (first, number)
                    what = f"{names[first]!r} {how} {names[number]!r}: bytes {place.begin} to {place.end}, unordered"
                    found.setdefault(pair, Race(first=first, second=number, range=place, what=what))
                clocks[stream] = (*clock[:stream], clock[stream] + 1, *clock[stream + 1 :])
            case Record(event=event, stream=stream):
                events[event] = clocks[stream]
            case Wait(stream=stream, event=event):
                clocks[stream] = _join(clocks[stream], events.get(event, clocks[stream]))
            case Synchronize():
                clocks = [tuple(clocks[stream][stream] for stream in range(streams))] * streams
    return tuple(found.values())


def _join(one: Clock, other: Clock) -> Clock:
    return tuple(map(max, one, other))


def _conflicts(
    past: ShadowMemory[_Past], work: Task, now: _Touch, clock: Clock
) -> Iterator[tuple[int, ByteRange, str]]:
    """The earlier works that ``work`` races with, where and how; ``past`` knows of it afterwards."""
    for access in work.reads:
        for place, before in list(past.pieces(access.range)):
            if before.write is not None and _open(before.write, clock):
                yield before.write.work, place, "writes what is read by"
            reads = (*(read for read in before.reads if _open(read, clock)), now)
            past.assign(place, _Past(before.write, reads))
    for access in work.writes:
        for place, before in list(past.pieces(access.range)):
            if before.write is not None and _open(before.write, clock):
                yield before.write.work, place, "writes what is written by"
            for read in before.reads:
                if _open(read, clock) and read.work != now.work:
                    yield read.work, place, "reads what is written by"
        past.assign(access.range, _Past(now, ()))


def _open(touch: _Touch, clock: Clock) -> bool:
    """Whether it may still be under way for one that knows ``clock``."""
    return clock[touch.stream] < touch.at
