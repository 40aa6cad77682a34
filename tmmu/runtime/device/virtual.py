"""Virtual time: what a program takes on a device of stated speed, by a clock that only computes.

Whole nanoseconds, rounded up for each work. Copies share one link and take it in the order in which they are issued;
computing has its stream to itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tmmu.errors import InvalidConfig
from tmmu.runtime.device.command_log import CommandLog, DryRunDevice, Record, Submit, Synchronize, Wait
from tmmu.runtime.device.interface import Observer, Stream
from tmmu.runtime.device.tags import Mismatch, TagChecker

NS_PER_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """How fast bytes cross: ``bytes_per_second``, after ``per_copy`` ns for each copy."""

    bytes_per_second: int
    overhead_ns: int = 0

    def copy_ns(self, moved: int) -> int:
        """ns for one copy of so many bytes."""
        return self.overhead_ns - (-moved * NS_PER_SECOND // self.bytes_per_second)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTiming:
    """When a work began and ended, in ns."""

    task: int
    name: str
    stream: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """All works by number, the ns until the last one ended, and of these how long the link was busy."""

    tasks: tuple[TaskTiming, ...]
    total_ns: int
    link_busy_ns: int


class VirtualDevice(DryRunDevice):
    """A device that takes no time to simulate and tells how long it would have taken."""

    def __init__(self, link: LinkSpeed, observers: Sequence[Observer] = ()) -> None:
        if link.bytes_per_second < 1 or link.overhead_ns < 0:
            raise InvalidConfig(f"a link of {link.bytes_per_second} bytes per second", fix="give a rate of 1 or more")
        super().__init__(observers)
        self._link = link

    def mismatches(self) -> tuple[Mismatch, ...]:
        """What readers of the wrong bytes would have found, at the times of the timeline."""
        return mismatches(self.log, self.timeline())

    def timeline(self) -> Timeline:
        """When each work that was issued so far begins and ends."""
        return timeline(self.log, self._link)


def timeline(program: CommandLog, link: LinkSpeed) -> Timeline:
    """When every work begins and ends: it begins when its stream is free, and for a copy the link."""
    free = [0] * program.stream_count
    events: dict[int, int] = {}
    link_free = busy = total = 0
    works: list[TaskTiming] = []
    for one in program.commands:
        match one:
            case Submit(number=number, stream=stream, task=work):
                begin = max(free[stream], link_free) if work.link_bytes else free[stream]
                end = begin + (link.copy_ns(work.link_bytes) if work.link_bytes else work.compute_ns)
                if work.link_bytes:
                    link_free, busy = end, busy + end - begin
                free[stream], total = end, max(total, end)
                works.append(TaskTiming(task=number, name=work.name, stream=stream, begin=begin, end=end))
            case Record(event=event, stream=stream):
                events[event] = free[stream]
            case Wait(stream=stream, event=event):
                free[stream] = max(free[stream], events.get(event, 0))
            case Synchronize():
                free = [max(free, default=0)] * len(free)
    return Timeline(tasks=tuple(works), total_ns=total, link_busy_ns=busy)


def mismatches(program: CommandLog, times: Timeline) -> tuple[Mismatch, ...]:
    """What ``Tags`` sees when works begin and end at these times; at one time, ends come before begins."""
    tags = TagChecker()
    for one in program.commands:
        if isinstance(one, Submit):
            tags.on_submit(one.number, Stream(one.stream, ""), one.task)
    moments: list[tuple[int, int, int, int]] = []
    for timing in times.tasks:
        at_once = timing.begin == timing.end
        moments.append((timing.begin, 1 if at_once else 2, timing.task, 0))
        moments.append((timing.end, 1 if at_once else 0, timing.task, 1))
    for _, _, work, ends in sorted(moments):
        (tags.on_end if ends else tags.on_begin)(work)
    return tags.mismatches
