"""The visit cursor: from "this block is needed now" to ``enter`` and ``leave`` of every visit in schedule order.

State: the next visit to enter, the visits that are entered and not left, and per block how many users it has between
``begin`` and ``end``.

Invariants: the loop sees each visit entered once and left once per pass, in the order of the schedule, whatever the
caller's order; a streamed block with users is never left. A visit is left when the first one that starts after its last
op is entered. So a caller in schedule order costs nothing extra; one that skips a layer has the layers between copied
and not read; one that goes back has the rest of the pass and the next one up to there copied. ``skipped`` counts both.
"""

from bisect import bisect_left

from tmmu.errors import InvalidConfig
from tmmu.runtime.ring.loop import StreamingLoop


class VisitCursor:
    """Keeps a loop at the visit of the block that is needed."""

    def __init__(self, loop: StreamingLoop) -> None:
        self.loop, self.skipped = loop, 0
        self._visits = loop.ring.visits
        self._has_copy = frozenset(copy.visit for copy in loop.ring.copies)
        self._visits_of: list[list[int]] = [[] for _ in loop.ring.blocks]
        for index, visit in enumerate(self._visits):
            self._visits_of[visit.block].append(index)
        self._next = 0
        self._entered: list[int] = []
        self._users = [0] * len(loop.ring.blocks)

    def begin(self, block: int) -> None:
        """The block is on the device until its ``end``, and longer if the schedule says so. May be nested."""
        if not self._users[block] and not any(self._visits[visit].block == block for visit in self._entered):
            visits = self._visits_of[block]
            index = bisect_left(visits, self._next)
            if self.loop.ring.blocks[block].resident:
                self._follow_resident(visits[index : index + 1])
            else:
                if index == len(visits):
                    self.finish()
                self._advance(visits[index % len(visits)])
        self._users[block] += 1

    def end(self, block: int) -> None:
        """One user less."""
        self._users[block] -= 1

    def finish(self) -> None:
        """Ends the pass: every visit was entered and left."""
        self._advance(len(self._visits))
        self._leave(self._entered)
        self._next = 0

    def restart(self) -> None:
        """As before the first pass, after one that broke off."""
        self._next, self._entered, self._users = 0, [], [0] * len(self._users)
        self.loop.restart()

    def _follow_resident(self, visits: list[int]) -> None:
        """Advances to the visit of a resident block unless a streamed one lies between: the block is there anyway."""
        for visit in visits:
            if not any(between in self._has_copy for between in range(self._next, visit)):
                self._advance(visit)

    def _advance(self, target: int) -> None:
        """Enters every visit up to ``target``, and leaves those that are over by then."""
        for visit in range(self._next, min(target + 1, len(self._visits))):
            self._leave([v for v in self._entered if self._visits[v].last < self._visits[visit].first])
            self.skipped += visit < target and visit in self._has_copy
            self.loop.enter(visit)
            self._entered.append(visit)
            self._next = visit + 1

    def _leave(self, visits: list[int]) -> None:
        for visit in list(visits):
            block = self._visits[visit].block
            if self._users[block] and visit in self._has_copy:
                raise InvalidConfig(
                    f"{self.loop.ring.blocks[block].name} is still running where the schedule is done with it",
                    fix="plan the ring from the order in which this module runs",
                    block=self.loop.ring.blocks[block].name,
                )
            self.loop.leave(visit)
            self._entered.remove(visit)
