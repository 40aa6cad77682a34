"""From "this block is needed now" to the visits of the schedule, in its order, none left out."""

from bisect import bisect_left

from tmmu.errors import InvalidConfig
from tmmu.runtime.ring.loop import StreamingLoop


class VisitCursor:
    """Enters and leaves visits so that the block that is needed is there, whatever the caller's order.

    A caller that follows the schedule costs nothing extra. For one that skips a layer, the layers between are copied
    without being read; for one that goes back, those to the end of the pass and on. Both are counted in ``skipped``.
    """

    def __init__(self, loop: StreamingLoop) -> None:
        self.loop, self.skipped = loop, 0
        self._visits = loop.ring.visits
        self._copied = frozenset(copy.visit for copy in loop.ring.copies)
        self._of: list[list[int]] = [[] for _ in loop.ring.blocks]
        for index, visit in enumerate(self._visits):
            self._of[visit.block].append(index)
        self._stays = [block.resident for block in loop.ring.blocks]
        self._next = 0
        self._open: list[int] = []
        self._busy = [0] * len(loop.ring.blocks)

    def begin(self, block: int) -> None:
        """The block is there until its ``end``, and longer if the schedule says so."""
        if not self._busy[block] and not any(self._visits[visit].block == block for visit in self._open):
            row = self._of[block]
            at = bisect_left(row, self._next)
            if self._stays[block]:
                self._step_to(row[at : at + 1])
            else:
                if at == len(row):
                    self.finish()
                self._advance(row[at % len(row)])
        self._busy[block] += 1

    def end(self, block: int) -> None:
        """The caller is done with what ``begin`` was for."""
        self._busy[block] -= 1

    def finish(self) -> None:
        """The pass is over: every visit was entered and left."""
        self._advance(len(self._visits))
        self._close(self._open)
        self._next = 0

    def restart(self) -> None:
        """As before the first pass; for after one that broke off."""
        self._next, self._open, self._busy = 0, [], [0] * len(self._busy)
        self.loop.restart()

    def _step_to(self, visits: list[int]) -> None:
        """On to the visit of a block that stays, if nothing streams before it: it is there in any case."""
        for visit in visits:
            if not any(other in self._copied for other in range(self._next, visit)):
                self._advance(visit)

    def _advance(self, target: int) -> None:
        """Every visit up to ``target`` is entered, those before it that are over by then left."""
        for visit in range(self._next, min(target + 1, len(self._visits))):
            self._close([other for other in self._open if self._visits[other].last < self._visits[visit].first])
            self.skipped += visit < target and visit in self._copied
            self.loop.enter(visit)
            self._open.append(visit)
            self._next = visit + 1

    def _close(self, visits: list[int]) -> None:
        for visit in list(visits):
            block = self._visits[visit].block
            if self._busy[block] and visit in self._copied:
                raise InvalidConfig(
                    f"{self.loop.ring.blocks[block].name} is still running where the schedule is done with it",
                    fix="plan the ring from the order in which this module runs",
                    block=self.loop.ring.blocks[block].name,
                )
            self.loop.leave(visit)
            self._open.remove(visit)
