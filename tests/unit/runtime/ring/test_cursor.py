"""Whatever is needed is there; visits are entered and left in the order of the schedule, each once in a pass."""

from dataclasses import replace

import pytest

from tests.rings import in_slots, ring_at
from tmmu.errors import InvalidConfig
from tmmu.ir.ring import Ring, Visit
from tmmu.runtime.device.command_log import DryRunDevice
from tmmu.runtime.ring.cursor import VisitCursor
from tmmu.runtime.ring.loop import PlaceholderBlocks, StreamingLoop


class Told(StreamingLoop):
    """Keeps what it was told."""

    def __init__(self, ring: Ring) -> None:
        self.log: list[str] = []
        super().__init__(DryRunDevice(), ring, PlaceholderBlocks(ring))

    def enter(self, visit: int) -> None:
        self.log.append(f"+{visit}")
        super().enter(visit)

    def leave(self, visit: int) -> None:
        self.log.append(f"-{visit}")
        super().leave(visit)


def walk(ring: Ring) -> tuple[VisitCursor, Told]:
    loop = Told(ring)
    return VisitCursor(loop), loop


def once(walked: VisitCursor, block: int) -> None:
    walked.begin(block)
    walked.end(block)


def spans(ring: Ring, *rows: tuple[int, int]) -> Ring:
    """The ring with its visits at these positions."""
    visits = zip(ring.visits, rows, strict=True)
    return replace(
        ring, visits=tuple(Visit(block=visit.block, first=first, last=last) for visit, (first, last) in visits)
    )


SLOTS = ring_at(in_slots((0, 1, 0)))


def test_in_order_each_is_left_when_the_next_begins() -> None:
    walked, loop = walk(SLOTS)
    for block in range(3):
        once(walked, block)
    walked.finish()
    once(walked, 0)
    assert " ".join(loop.log) == "+0 -0 +1 -1 +2 -2 +0"
    assert walked.skipped == 0


def test_again_while_it_is_open_is_no_new_visit() -> None:
    walked, loop = walk(SLOTS)
    for block in (0, 0, 1, 1):
        once(walked, block)
    assert " ".join(loop.log) == "+0 -0 +1"


def test_visits_that_overlap_stay_open_together() -> None:
    ring = spans(ring_at(in_slots((0, 1, 2))), (0, 5), (2, 3), (6, 7))
    walked, loop = walk(ring)
    for block in (0, 1, 0, 2):
        once(walked, block)
    assert " ".join(loop.log) == "+0 +1 -0 -1 +2"


def test_a_layer_left_out_is_passed_over_and_counted() -> None:
    walked, loop = walk(SLOTS)
    once(walked, 0)
    once(walked, 2)
    assert " ".join(loop.log) == "+0 -0 +1 -1 +2"
    assert walked.skipped == 1
    walked.finish()
    walked.finish()
    assert walked.skipped == 4


def test_going_back_ends_the_pass() -> None:
    walked, loop = walk(SLOTS)
    once(walked, 1)
    once(walked, 0)
    assert " ".join(loop.log) == "+0 -0 +1 -1 +2 -2 +0"
    assert walked.skipped == 2


def test_a_block_that_would_go_while_it_is_used_is_refused() -> None:
    walked, _ = walk(SLOTS)
    walked.begin(0)
    with pytest.raises(InvalidConfig, match="layer 0 is still running where the schedule is done with it"):
        walked.begin(1)


def test_one_that_stays_may_be_used_at_any_time() -> None:
    ring = ring_at(((0, 1), (1, 2), (1, 2)), resident=[0])
    walked, loop = walk(ring)
    walked.begin(0)
    once(walked, 1)
    walked.end(0)
    assert " ".join(loop.log) == "+0 -0 +1"


def test_one_that_stays_moves_the_schedule_on_only_where_nothing_streams_between() -> None:
    ring = ring_at(((0, 1), (1, 2), (1, 2), (2, 3)), order=(0, 1, 2, 0, 3), resident=[0, 3])
    walked, loop = walk(ring)
    once(walked, 1)
    once(walked, 0)
    once(walked, 3)
    assert " ".join(loop.log) == "+0 -0 +1"
    once(walked, 2)
    once(walked, 3)
    assert " ".join(loop.log) == "+0 -0 +1 -1 +2 -2 +3 -3 +4"
    assert walked.skipped == 0


def test_after_a_restart_nothing_is_open_or_in_use() -> None:
    walked, loop = walk(SLOTS)
    walked.begin(0)
    walked.restart()
    once(walked, 0)
    once(walked, 1)
    assert " ".join(loop.log) == "+0 +0 -0 +1"
