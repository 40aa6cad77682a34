"""What to drop and make again: peak shaving, in which every step is a whole schedule.

A state is the set of gaps that are dropped. The search takes the fullest position of its schedule; of the buffers that
are not used across it, those that free the most bytes for the time of what has to run again are dropped, several at
once as long as they are about as good and no more than a share of the peak; if the new schedule has a lower peak, it
is the state, else the first of them alone is tried, and else it is left alone from then on. It ends when nothing is
left to try. Each *point* that the search passes through takes fewer bytes than the one before. Deterministic, without a
seed; bounded by ``MOST_STEPS`` and by ``MOST_WORK`` rows.

A search begins with a seed: nothing dropped, or something; buffers may be available to what runs again after their last
use, at no cost until something uses them so.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from tmmu.ir.ids import OpId
from tmmu.planner.fit import kernel
from tmmu.planner.fit.cells import Cells, ScheduleCells
from tmmu.planner.fit.seeds.seed import Seed
from tmmu.planner.fit.step_table import StepTable
from tmmu.planner.pack.exact.jit import make_cells, zero_cells

MOST_STEPS: Final = 4_000
MOST_WORK: Final = 12_000_000
"""Rows of all schedules of one search."""
ROOM: Final = 3
"""A schedule has at most this many times the rows of the step."""
SMALLEST: Final = 1 << 16
"""Bytes below this part of the peak are not worth a schedule."""
ALIKE: Final = 0.7
"""What frees at least this share of the best one's bytes for its time is dropped together with it."""
SHARE: Final = 0.003
"""Of the peak, what is dropped at once."""
MOST_FAILURES: Final = 64
"""Tries in a row of which none has a lower peak, after which a search ends."""
UNBOUNDED: Final = 1 << 62
SLACK: Final = 100_000
"""Picoseconds added to the time of what runs again, so that nothing is free."""

Gaps = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A schedule: bytes at its fullest position, picoseconds and FLOPs of what runs again, and the gaps it drops."""

    peak: int
    time: int
    flops: int
    dropped: bytes
    """int8 per gap."""


@dataclass(kw_only=True)
class Search:
    """The memory of searches of one step: schedules are made in it, one after another.

    ``now``: the present schedule; ``trial``: of a state that is tried.
    """

    table: StepTable
    now: ScheduleCells = field(init=False)
    trial: ScheduleCells = field(init=False)
    columns: "_Columns" = field(init=False)

    def __post_init__(self) -> None:
        self.now, self.trial = _schedule_cells(self.table), _schedule_cells(self.table)
        self.columns = _Columns.of(self.table)

    @property
    def work(self) -> int:
        """Rows of all schedules so far."""
        return int(self.now.totals[kernel.WORK]) + int(self.trial.totals[kernel.WORK])

    @property
    def area(self) -> int:
        """Bytes live in the present schedule, summed over its positions."""
        return sum(map(int, self.now.profile[: int(self.now.totals[kernel.ROWS])]))

    def start(self, seed: Seed) -> Gaps:
        """What a seed drops, and after its last use every buffer that it does not keep available."""
        keeps = np.isin(self.columns.buffer, np.array(seed.available, dtype=np.int64))
        drops = np.isin(self.table.gap, np.array(seed.dropped, dtype=np.int64))
        result: Gaps = ((self.columns.last & ~keeps) | drops).astype(np.int64)
        return result

    def seed(self, point: Point) -> Seed:
        """What begins with a point, in any order."""
        dropped = np.frombuffer(point.dropped, dtype=np.int8) == 1
        available = np.unique(self.columns.buffer[self.columns.last & ~dropped])
        return Seed(
            available=tuple(available.tolist()), dropped=tuple(self.table.gap[dropped & ~self.columns.last].tolist())
        )

    def schedule(self, dropped: Gaps) -> bool:
        """Make the schedule of a state; False where it has none."""
        return kernel.schedule(self.table.cells, make_cells(dropped), self.now)

    def point(self, dropped: Gaps) -> Point:
        """The state whose schedule was made last."""
        totals = self.now.totals
        return Point(
            peak=int(totals[kernel.PEAK]),
            time=int(totals[kernel.TIME]),
            flops=int(totals[kernel.FLOPS]),
            dropped=dropped.astype(np.int8).tobytes(),
        )

    def rows(self, point: Point) -> Iterator[tuple[OpId, bool]]:
        """The schedule of a point: ops, and whether they run again."""
        self.schedule(np.frombuffer(point.dropped, dtype=np.int8).astype(np.int64))
        for position in range(int(self.now.totals[kernel.ROWS])):
            yield self.table.op[self.now.row[position]], bool(self.now.again[position])

    def shave(
        self,
        start: Gaps,
        *,
        most_failures: int = MOST_FAILURES,
        pace: Callable[[Point], int] = lambda _: 1,
        most_time: int = UNBOUNDED,
    ) -> Iterator[Point]:
        """States of falling peaks, the start first; nothing where the start has no schedule.

        ``pace``: how many times the usual share is dropped at once after a point. ``most_time``: of what runs again.
        """
        state, limit, failures = start, self.work + MOST_WORK, 0
        if not self.schedule(state):
            return
        yield (point := self.point(state))
        left_alone = np.zeros(len(state), dtype=bool)
        for _ in range(MOST_STEPS):
            chosen = self._choose(state, point, left_alone, SHARE * pace(point), most_time)
            if not chosen or self.work > limit or failures == most_failures:
                return
            better = next((s for s in self._tries(state, chosen) if self._is_lower(s, point.peak, most_time)), None)
            if better is None:
                left_alone[chosen[0]] = True
                failures += 1
            else:
                state, failures = better, 0
                yield (point := self.point(state))

    def _is_lower(self, state: Gaps, peak: int, most_time: int) -> bool:
        """Whether a state takes fewer bytes, within the time; if so, its schedule is the present one."""
        is_made, totals = kernel.schedule(self.table.cells, make_cells(state), self.trial), self.trial.totals
        is_lower = is_made and int(totals[kernel.PEAK]) < peak and int(totals[kernel.TIME]) <= most_time
        if is_lower:
            self.now, self.trial = self.trial, self.now
        return is_lower

    @staticmethod
    def _tries(state: Gaps, chosen: Sequence[int]) -> Iterator[Gaps]:
        for some in (chosen, chosen[:1])[: min(len(chosen), 2)]:
            result = state.copy()
            result[list(some)] = 1
            yield result

    def _choose(
        self, state: Gaps, point: Point, left_alone: npt.NDArray[np.bool_], share: float, most_time: int
    ) -> list[int]:
        """The best gaps across the fullest position, the best one first; none where none is left."""
        peak, room = point.peak, most_time - point.time
        gaps = np.flatnonzero(self._across(self._fullest()) & ~left_alone & (state == 0))
        gaps = gaps[self.columns.size[gaps] * SMALLEST >= peak]
        times = self._times(state, gaps)
        is_possible = (times >= 0) & (times <= room)
        gaps, times = gaps[is_possible], times[is_possible]
        score = self.columns.size[gaps] / (times + SLACK)
        chosen, freed, best = list[int](), 0, 0.0
        for place in np.lexsort((gaps, self.columns.row[gaps] - self.columns.next[gaps], -score)):
            if chosen and (score[place] < ALIKE * best or freed >= share * peak):
                break
            best = max(best, float(score[place]))
            chosen.append(int(gaps[place]))
            freed += int(self.columns.size[gaps[place]])
        return chosen

    def _fullest(self) -> int:
        return int(self.now.totals[kernel.FULLEST])

    def _across(self, position: int) -> npt.NDArray[np.bool_]:
        """The gaps that may be dropped, and whose buffer is then not live at a position."""
        cells, columns, now = self.table.cells, self.columns, self.now
        row, again, rows = self.table.op[now.row[position]], bool(now.again[position]), int(now.totals[kernel.ROWS])
        while position < rows and now.again[position]:
            position += 1
        following = int(now.row[position]) if position < rows else len(cells.touch_at) - 1
        before: npt.NDArray[np.bool_] = columns.droppable & (columns.row < following)
        if not again:
            return before & (columns.next > following)
        touched = cells.touch_of[cells.touch_at[row] : cells.touch_at[row + 1]]
        return before & (columns.next >= following) & ~np.isin(columns.buffer, np.asarray(touched))

    def _times(self, state: Gaps, gaps: Gaps) -> Gaps:
        """Of each gap the time of what would run again beside what does; -1 where it cannot."""
        times = zero_cells(len(gaps))
        kernel.closure_times(self.table.cells, make_cells(state), self.now, make_cells(gaps), times)
        return np.asarray(times, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """Per gap its buffer, that buffer's bytes, the rows before and after it, and whether it may be dropped."""

    buffer: Gaps
    size: Gaps
    row: Gaps
    next: Gaps
    droppable: npt.NDArray[np.bool_]
    last: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, table: StepTable) -> "_Columns":
        buffer = np.asarray(table.cells.touch_of, dtype=np.int64)
        return cls(
            buffer=buffer,
            size=table.facts.size[buffer],
            row=np.asarray(table.cells.touch_row, dtype=np.int64),
            next=np.asarray(table.cells.next_use, dtype=np.int64),
            droppable=table.droppable & ~table.last_use,
            last=table.last_use,
        )


def _schedule_cells(table: StepTable) -> ScheduleCells:
    cells = table.cells
    rows, copies, groups = (len(cells.read_at) - 1), len(cells.write_of) * ROOM, len(cells.group_at)

    def zeros(count: int) -> Cells:
        result: Cells = zero_cells(count)
        return result

    return ScheduleCells(
        totals=zeros(kernel.TOTALS), row=zeros(rows * ROOM), again=zeros(rows * ROOM), now=zeros(len(cells.size)),
        version=zeros(len(table.graph.buffers)), birth=zeros(copies), death=zeros(copies), copied=zeros(copies),
        made_again=zeros(copies), profile=zeros(rows * ROOM + 1), took=zeros(3 * ROOM * len(cells.over_new)),
        taken=zeros(copies), stack=zeros(groups), waiting=zeros(groups), reruns=zeros(rows), seen=zeros(groups),
    )  # fmt: skip
