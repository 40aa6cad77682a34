"""Virtual time: what a program takes on a device of stated speed, by a clock that only computes.

Whole nanoseconds, rounded up for each work. Copies share one link and take it in the order in which they are issued;
computing has its stream to itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tmmu.errors import InvalidConfig
from tmmu.runtime.device.interface import Observer, Stream
from tmmu.runtime.device.command_log import PaperDevice, Program, Recorded, Settled, Submitted, Waited
from tmmu.runtime.device.tags import Mismatch, Tags

SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Link:
    """How fast bytes cross: ``bytes_per_second``, after ``per_copy`` ns for each copy."""

    bytes_per_second: int
    per_copy: int = 0

    def time(self, moved: int) -> int:
        """ns for one copy of so many bytes."""
        return self.per_copy - (-moved * SECOND // self.bytes_per_second)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """When a work began and ended, in ns."""

    work: int
    name: str
    stream: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """All works by number, the ns until the last one ended, and of these how long the link was busy."""

    works: tuple[Timing, ...]
    total: int
    link_busy: int


class VirtualDevice(PaperDevice):
    """A device that takes no time to simulate and tells how long it would have taken."""

    def __init__(self, link: Link, observers: Sequence[Observer] = ()) -> None:
        if link.bytes_per_second < 1 or link.per_copy < 0:
            raise InvalidConfig(f"a link of {link.bytes_per_second} bytes per second", fix="give a rate of 1 or more")
        super().__init__(observers)
        self._link = link

    def mismatches(self) -> tuple[Mismatch, ...]:
        """What readers of the wrong bytes would have found, at the times of the timeline."""
        return mismatches(self.program, self.timeline())

    def timeline(self) -> Timeline:
        """When each work that was issued so far begins and ends."""
        return timeline(self.program, self._link)


def timeline(program: Program, link: Link) -> Timeline:
    """When every work begins and ends: it begins when its stream is free, and for a copy the link."""
    free = [0] * program.streams
    events: dict[int, int] = {}
    link_free = busy = total = 0
    works: list[Timing] = []
    for one in program.commands:
        match one:
            case Submitted(number=number, stream=stream, work=work):
                begin = max(free[stream], link_free) if work.moved else free[stream]
                end = begin + (link.time(work.moved) if work.moved else work.cost)
                if work.moved:
                    link_free, busy = end, busy + end - begin
                free[stream], total = end, max(total, end)
                works.append(Timing(work=number, name=work.name, stream=stream, begin=begin, end=end))
            case Recorded(event=event, stream=stream):
                events[event] = free[stream]
            case Waited(stream=stream, event=event):
                free[stream] = max(free[stream], events.get(event, 0))
            case Settled():
                free = [max(free, default=0)] * len(free)
    return Timeline(works=tuple(works), total=total, link_busy=busy)


def mismatches(program: Program, times: Timeline) -> tuple[Mismatch, ...]:
    """What ``Tags`` sees when works begin and end at these times; at one time, ends come before begins."""
    tags = Tags()
    for one in program.commands:
        if isinstance(one, Submitted):
            tags.submitted(one.number, Stream(one.stream, ""), one.work)
    moments: list[tuple[int, int, int, int]] = []
    for timing in times.works:
        at_once = timing.begin == timing.end
        moments.append((timing.begin, 1 if at_once else 2, timing.work, 0))
        moments.append((timing.end, 1 if at_once else 0, timing.work, 1))
    for _, _, work, ends in sorted(moments):
        (tags.ended if ends else tags.began)(work)
    return tags.mismatches
