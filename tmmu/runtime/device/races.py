"""The order oracle: a data-race detector over the commands of a device (happens-before by vector clocks).

Two tasks conflict if they touch a common byte and one of them writes it. They must be ordered by *happens-before*, the
least transitive relation with: tasks of one stream in the order of submission; everything before a record before
everything after a wait for it, on every stream where the host waits; everything before a synchronize before everything
after it.

State: per stream a vector clock (Lamport 1978, Fidge 1988): how many tasks of each stream are known to have ended when
the stream's next task begins. Per event the clock at its latest record. Per byte (``ShadowMemory``) its last write and
the reads since then that a later access might race with.

Invariant: a task is ordered before the present one if and only if the present clock counts it. A read is dropped once
the clock of a later read counts it: a write after the later read is after both, any other write races with that read.

Nothing is run. What the commands order is ordered in every run; what they leave unordered may go wrong in some run,
even if it never did. One pass over the commands; O(streams) per clock update and O(pieces) per access.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from tmmu.runtime.device.command_log import CommandLog, HostWait, Record, Submit, Synchronize, Wait
from tmmu.runtime.device.interface import ByteRange, Task
from tmmu.runtime.device.shadow import ShadowMemory

Clock: TypeAlias = tuple[int, ...]
"""Per stream, how many of its tasks are known to have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """Tasks ``first`` and ``second``, by number, conflict in ``range``, and nothing orders them."""

    first: int
    second: int
    range: ByteRange
    description: str


@dataclass(frozen=True, slots=True)
class _TaskAccess:
    """The ``index``-th task of a stream, counted from 1, touches a byte."""

    task: int
    stream: int
    index: int


@dataclass(frozen=True, slots=True)
class _ByteHistory:
    """Of one byte: its last write, and the reads since then."""

    write: _TaskAccess | None
    reads: tuple[_TaskAccess, ...]


def races(log: CommandLog) -> tuple[Race, ...]:
    """Every pair of conflicting tasks that nothing orders, by the later of the two; one race for each pair."""
    streams = log.stream_count
    clocks: list[Clock] = [(0,) * streams for _ in range(streams)]
    events: dict[int, Clock] = {}
    history: ShadowMemory[_ByteHistory] = ShadowMemory(_ByteHistory(None, ()))
    names: dict[int, str] = {}
    unordered: dict[tuple[int, int], Race] = {}
    for command in log.commands:
        match command:
            case Submit(number=number, stream=stream, task=task):
                names[number] = task.name
                clock = clocks[stream]
                now = _TaskAccess(number, stream, clock[stream] + 1)
                for first, place, relation in _conflicts(history, task, now, clock):
                    description = (
                        f"{names[first]!r} {relation} {names[number]!r}: bytes {place.begin} to {place.end}, unordered"
                    )
                    unordered.setdefault(
                        (first, number), Race(first=first, second=number, range=place, description=description)
                    )
                clocks[stream] = (*clock[:stream], clock[stream] + 1, *clock[stream + 1 :])
            case Record(event=event, stream=stream):
                events[event] = clocks[stream]
            case Wait(stream=stream, event=event):
                clocks[stream] = tuple(map(max, clocks[stream], events.get(event, clocks[stream])))
            case HostWait(event=event):
                clocks = [tuple(map(max, clock, events.get(event, clock))) for clock in clocks]
            case Synchronize():
                clocks = [tuple(clocks[stream][stream] for stream in range(streams))] * streams
    return tuple(unordered.values())


def _conflicts(
    history: ShadowMemory[_ByteHistory], task: Task, now: _TaskAccess, clock: Clock
) -> Iterator[tuple[int, ByteRange, str]]:
    """The earlier tasks that ``task`` races with, where and how; afterwards ``history`` holds its accesses too."""
    for access in task.reads:
        for place, before in list(history.pieces(access.range)):
            if before.write is not None and _is_unordered(before.write, clock):
                yield before.write.task, place, "writes what is read by"
            reads = (*(read for read in before.reads if _is_unordered(read, clock)), now)
            history.assign(place, _ByteHistory(before.write, reads))
    for access in task.writes:
        for place, before in list(history.pieces(access.range)):
            if before.write is not None and _is_unordered(before.write, clock):
                yield before.write.task, place, "writes what is written by"
            for read in before.reads:
                if _is_unordered(read, clock) and read.task != now.task:
                    yield read.task, place, "reads what is written by"
        history.assign(access.range, _ByteHistory(now, ()))


def _is_unordered(access: _TaskAccess, clock: Clock) -> bool:
    """Whether it may still be under way where only ``clock`` is known to have ended."""
    return clock[access.stream] < access.index
