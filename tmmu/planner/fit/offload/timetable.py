"""When copies go and come over a link that runs beside the ops, one at a time each way, and what ops wait for them.

Row ``r`` runs from ``start[r]`` to ``start[r + 1]``, in picoseconds, where nothing waits. A copy to the host may begin
once its value is made; *before* its row ``out`` the ops wait for it. A copy back begins when the ops have come to its
row ``back``, and they wait for it before its next reader. So the device has no bytes of the value in ``[out, back)``.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tmmu.planner.fit.offload.trips import Trip
from tmmu.planner.ring.profile import Profile, copy_time

PICOSECONDS_PER_NANOSECOND: Final = 1_000


@dataclass(frozen=True, slots=True)
class Stay:
    """The rows ``[out, back)`` during which a trip's value is in host memory alone."""

    out: int
    back: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timetable:
    """``start``: of each row, and the end of the last, in picoseconds; ``profile``: the link, each way."""

    start: Sequence[int]
    profile: Profile

    def copy_time(self, trip: Trip) -> int:
        """Picoseconds of a copy, either way."""
        return copy_time(self.profile, trip.size) * PICOSECONDS_PER_NANOSECOND

    def stays(self, needed: Mapping[Trip, range]) -> dict[Trip, Stay]:
        """Of each trip, the longest stay for which no op waits, but no less than the rows in which it has to be away.

        Copies go in the order in which their values are made, and come back as late as they may.
        """
        outs, free = dict[Trip, int](), 0
        for trip in sorted(needed, key=lambda trip: (trip.writer, trip.buffer)):
            free = max(free, self.start[trip.writer + 1]) + self.copy_time(trip)
            outs[trip] = max(trip.last + 1, bisect_left(self.start, free))
        stays, free = dict[Trip, Stay](), self.start[-1]
        for trip in sorted(needed, key=lambda trip: (-trip.first, trip.buffer)):
            free = min(free, self.start[trip.first]) - self.copy_time(trip)
            back = min(trip.first, max(trip.last + 1, bisect_right(self.start, free) - 1))
            rows = needed[trip]
            stays[trip] = Stay(min(outs[trip], rows.start), max(back, rows.stop))
        return stays

    def extra_time(self, stays: Mapping[Trip, Stay]) -> int:
        """Picoseconds that ops wait for copies, if copies are issued as soon as they may be."""
        written, out, back, first = (
            _by_row((row(trip, stay), trip) for trip, stay in stays.items())
            for row in (
                lambda trip, _: trip.writer + 1,
                lambda _, stay: stay.out,
                lambda _, stay: stay.back,
                lambda trip, _: trip.first,
            )
        )
        clock = gone = come = 0
        left, returned = dict[Trip, int](), dict[Trip, int]()
        for row in range(len(self.start) - 1):
            for trip in written.get(row, ()):
                gone = left[trip] = max(gone, clock) + self.copy_time(trip)
            clock = max([clock, *(left[trip] for trip in out.get(row, ()))])
            for trip in back.get(row, ()):
                come = returned[trip] = max(come, clock, left[trip]) + self.copy_time(trip)
            clock = max([clock, *(returned[trip] for trip in first.get(row, ()))])
            clock += self.start[row + 1] - self.start[row]
        return clock - self.start[-1]


def _by_row(rows: Iterable[tuple[int, Trip]]) -> dict[int, list[Trip]]:
    by_row: dict[int, list[Trip]] = {}
    for row, trip in sorted(rows, key=lambda pair: (pair[0], pair[1].first, pair[1].buffer)):
        by_row.setdefault(row, []).append(trip)
    return by_row
