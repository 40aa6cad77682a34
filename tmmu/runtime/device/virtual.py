"""Simulated time: how long a command log takes on a device of stated speed, by a clock that only computes.

State: per stream when it is free, per event when its latest record is reached, and when the link is free. A task begins
when its stream is free; a copy also when the link is, which serves copies in the order of issue. A wait raises its
stream's time to the event's. One pass over the log, O(commands). Whole nanoseconds, rounded up for each task: with the
planner's costs the result equals the planner's prediction exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tmmu.errors import InvalidConfig
from tmmu.runtime.device.command_log import CommandLog, DryRunDevice, HostWait, Record, Submit, Synchronize, Wait
from tmmu.runtime.device.interface import Observer, Stream
from tmmu.runtime.device.tags import Mismatch, TagChecker

NS_PER_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """How fast bytes cross the link: ``bytes_per_second``, after ``overhead_ns`` for each copy."""

    bytes_per_second: int
    overhead_ns: int = 0

    def copy_ns(self, size: int) -> int:
        """Nanoseconds of one copy of ``size`` bytes, rounded up."""
        return self.overhead_ns - (-size * NS_PER_SECOND // self.bytes_per_second)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTiming:
    """When a task begins and ends, in ns."""

    task: int
    name: str
    stream: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """All tasks by number, the ns until the last one ends, and the ns of these in which the link is busy."""

    tasks: tuple[TaskTiming, ...]
    total_ns: int
    link_busy_ns: int


class VirtualDevice(DryRunDevice):
    """A device that runs nothing and tells how long it would have taken."""

    def __init__(self, link: LinkSpeed, observers: Sequence[Observer] = ()) -> None:
        if link.bytes_per_second < 1 or link.overhead_ns < 0:
            raise InvalidConfig(f"a link of {link.bytes_per_second} bytes per second", fix="give a rate of 1 or more")
        super().__init__(observers)
        self._link = link

    def mismatches(self) -> tuple[Mismatch, ...]:
        """What readers find wrong at the times of the timeline."""
        return mismatches(self.log, self.timeline())

    def timeline(self) -> Timeline:
        """When each task that was submitted so far begins and ends."""
        return timeline(self.log, self._link)


def timeline(log: CommandLog, link: LinkSpeed) -> Timeline:
    """When every task of the log begins and ends."""
    free = [0] * log.stream_count
    events: dict[int, int] = {}
    link_free = busy = total = 0
    tasks: list[TaskTiming] = []
    for command in log.commands:
        match command:
            case Submit(number=number, stream=stream, task=task):
                begin = max(free[stream], link_free) if task.link_bytes else free[stream]
                end = begin + (link.copy_ns(task.link_bytes) if task.link_bytes else task.compute_ns)
                if task.link_bytes:
                    link_free, busy = end, busy + end - begin
                free[stream], total = end, max(total, end)
                tasks.append(TaskTiming(task=number, name=task.name, stream=stream, begin=begin, end=end))
            case Record(event=event, stream=stream):
                events[event] = free[stream]
            case Wait(stream=stream, event=event):
                free[stream] = max(free[stream], events.get(event, 0))
            case HostWait(event=event):
                free = [max(time, events.get(event, 0)) for time in free]
            case Synchronize():
                free = [max(free, default=0)] * len(free)
    return Timeline(tasks=tuple(tasks), total_ns=total, link_busy_ns=busy)


def mismatches(log: CommandLog, times: Timeline) -> tuple[Mismatch, ...]:
    """What ``TagChecker`` sees when tasks begin and end at these times; at one time, ends come before begins."""
    tags = TagChecker()
    for command in log.commands:
        if isinstance(command, Submit):
            tags.on_submit(command.number, Stream(command.stream, ""), command.task)
    moments: list[tuple[int, int, int, int]] = []
    for timing in times.tasks:
        # Of one time: ends first, then tasks without duration (begin and end together), then begins.
        instant = timing.begin == timing.end
        moments.append((timing.begin, 1 if instant else 2, timing.task, 0))
        moments.append((timing.end, 1 if instant else 0, timing.task, 1))
    for _, _, task, is_end in sorted(moments):
        (tags.on_end if is_end else tags.on_begin)(task)
    return tags.mismatches
