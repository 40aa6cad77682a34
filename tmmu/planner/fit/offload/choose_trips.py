"""Which values go: at the fullest position, those of the most bytes times the time for which nobody needs them."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from tmmu.ir.plan import Plan
from tmmu.planner.fit.offload.timetable import Stay, Timetable
from tmmu.planner.fit.offload.trips import Trip

MOST_STEPS: Final = 1_024
"""Trips that are begun or made longer, at most."""
STACK: Final = "stack"
REACH: Final = 8


def choose_trips(plan: Plan, trips: Sequence[Trip], timetable: Timetable, limit: int) -> dict[Trip, Stay]:
    """Trips after which no position of the plan has more than ``limit`` bytes live; as many of them as there are.

    One trip for each buffer. Where the link is too slow for a stay that no op waits for, ops wait. Bounded by counts:
    ``MOST_STEPS`` steps, each linear in the rows and trips.
    """
    live = live_bytes(plan)
    needed: dict[Trip, range] = {}
    for _ in range(MOST_STEPS):
        stays = timetable.stays(needed)
        now = live.copy()
        for trip, stay in stays.items():
            now[stay.out : stay.back] -= trip.size
        fullest = int(now.argmax()) if len(now) else 0
        if not len(now) or now[fullest] <= limit:
            return stays
        best = _next_trip(trips, needed, stays, fullest, timetable)
        if best is None:
            return stays
        needed[best] = _longer(best, needed.get(best), fullest)
    return timetable.stays(needed)


def _longer(trip: Trip, rows: range | None, row: int) -> range:
    """The rows of a trip with ``row`` and, where it was away before, an eighth of its whole gap beyond that."""
    if rows is None:
        return range(row, row + 1)
    reach = (trip.first - trip.last) // REACH
    if row < rows.start:
        return range(max(trip.last + 1, row - reach), rows.stop)
    return range(rows.start, min(trip.first, row + 1 + reach))


def _next_trip(
    trips: Sequence[Trip], needed: dict[Trip, range], stays: dict[Trip, Stay], row: int, timetable: Timetable
) -> Trip | None:
    """One that is begun and is not away at the row yet, else the best of the others; ``None`` without any.

    What is on its way has its cost in any case; another one would share the link with it.
    """
    gone = {trip.buffer: trip for trip in needed}
    across = [trip for trip in trips if trip.last < row < trip.first and gone.get(trip.buffer, trip) is trip]
    fresh = [trip for trip in across if trip.buffer not in gone]
    short = [trip for trip in across if trip in stays and not stays[trip].out <= row < stays[trip].back]
    start = timetable.start
    return max(
        short or fresh,
        key=lambda trip: (trip.size * (start[trip.first] - start[trip.last + 1]), -trip.buffer),
        default=None,
    )


def live_bytes(plan: Plan) -> npt.NDArray[np.int64]:
    """Bytes live on the stack at each position; a buffer that another one takes over ends where that begins."""
    rows, arenas = plan.buffers, plan.arenas
    taken_at = {old: birth for old, new, birth in zip(rows.takes_over, rows.id, rows.birth, strict=True) if old != new}
    change = np.zeros(len(plan.order) + 1, dtype=np.int64)
    columns = zip(rows.id, rows.arena, rows.bytes, rows.birth, rows.death, strict=True)
    for buffer, arena, size, birth, death in columns:
        if arenas.segment[arena] == STACK:
            change[birth] += size
            change[min(taken_at.get(buffer, death), len(plan.order))] -= size
    return np.cumsum(change)[:-1]
