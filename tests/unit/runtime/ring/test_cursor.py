"""The visit cursor: blocks that are needed are entered; visits come in schedule order, each once in a pass."""

from dataclasses import replace

import pytest

from tests.rings import ring_at, slot_spans
from tmmu.errors import InvalidConfig
from tmmu.ir.ring import Ring, Visit
from tmmu.runtime.device.command_log import DryRunDevice
from tmmu.runtime.ring.cursor import VisitCursor
from tmmu.runtime.ring.loop import PlaceholderBlocks, StreamingLoop


class LoggingLoop(StreamingLoop):
    """Logs ``enter`` as +visit and ``leave`` as -visit."""

    def __init__(self, ring: Ring) -> None:
        self.log: list[str] = []
        super().__init__(DryRunDevice(), ring, PlaceholderBlocks(ring))

    def enter(self, visit: int) -> None:
        self.log.append(f"+{visit}")
        super().enter(visit)

    def leave(self, visit: int) -> None:
        self.log.append(f"-{visit}")
        super().leave(visit)


def logged_cursor(ring: Ring) -> tuple[VisitCursor, LoggingLoop]:
    loop = LoggingLoop(ring)
    return VisitCursor(loop), loop


def use(cursor: VisitCursor, block: int) -> None:
    cursor.begin(block)
    cursor.end(block)


def with_positions(ring: Ring, *rows: tuple[int, int]) -> Ring:
    """The ring with its visits at these positions."""
    visits = zip(ring.visits, rows, strict=True)
    return replace(
        ring, visits=tuple(Visit(block=visit.block, first=first, last=last) for visit, (first, last) in visits)
    )


SLOTS = ring_at(slot_spans((0, 1, 0)))


def test_visits_in_order_are_left_when_the_next_begins() -> None:
    cursor, loop = logged_cursor(SLOTS)
    for block in range(3):
        use(cursor, block)
    cursor.finish()
    use(cursor, 0)
    assert " ".join(loop.log) == "+0 -0 +1 -1 +2 -2 +0"
    assert cursor.skipped == 0


def test_repeated_use_within_a_visit_is_no_new_visit() -> None:
    cursor, loop = logged_cursor(SLOTS)
    for block in (0, 0, 1, 1):
        use(cursor, block)
    assert " ".join(loop.log) == "+0 -0 +1"


def test_overlapping_visits_are_entered_together() -> None:
    ring = with_positions(ring_at(slot_spans((0, 1, 2))), (0, 5), (2, 3), (6, 7))
    cursor, loop = logged_cursor(ring)
    for block in (0, 1, 0, 2):
        use(cursor, block)
    assert " ".join(loop.log) == "+0 +1 -0 -1 +2"


def test_skipped_layer_is_copied_and_counted() -> None:
    cursor, loop = logged_cursor(SLOTS)
    use(cursor, 0)
    use(cursor, 2)
    assert " ".join(loop.log) == "+0 -0 +1 -1 +2"
    assert cursor.skipped == 1
    cursor.finish()
    cursor.finish()
    assert cursor.skipped == 4


def test_going_back_ends_the_pass() -> None:
    cursor, loop = logged_cursor(SLOTS)
    use(cursor, 1)
    use(cursor, 0)
    assert " ".join(loop.log) == "+0 -0 +1 -1 +2 -2 +0"
    assert cursor.skipped == 2


def test_block_overwritten_while_in_use_is_refused() -> None:
    cursor, _ = logged_cursor(SLOTS)
    cursor.begin(0)
    with pytest.raises(InvalidConfig, match="layer 0 is still running where the schedule is done with it"):
        cursor.begin(1)


def test_resident_block_may_be_used_at_any_time() -> None:
    ring = ring_at(((0, 1), (1, 2), (1, 2)), resident=[0])
    cursor, loop = logged_cursor(ring)
    cursor.begin(0)
    use(cursor, 1)
    cursor.end(0)
    assert " ".join(loop.log) == "+0 -0 +1"


def test_resident_block_advances_the_schedule_only_where_nothing_streams_between() -> None:
    ring = ring_at(((0, 1), (1, 2), (1, 2), (2, 3)), order=(0, 1, 2, 0, 3), resident=[0, 3])
    cursor, loop = logged_cursor(ring)
    use(cursor, 1)
    use(cursor, 0)
    use(cursor, 3)
    assert " ".join(loop.log) == "+0 -0 +1"
    use(cursor, 2)
    use(cursor, 3)
    assert " ".join(loop.log) == "+0 -0 +1 -1 +2 -2 +3 -3 +4"
    assert cursor.skipped == 0


def test_restart_leaves_nothing_entered_or_in_use() -> None:
    cursor, loop = logged_cursor(SLOTS)
    cursor.begin(0)
    cursor.restart()
    use(cursor, 0)
    use(cursor, 1)
    assert " ".join(loop.log) == "+0 +0 -0 +1"
