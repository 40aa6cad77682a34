"""The swapper: where bytes are, by hand."""

from typing import Any

import pytest

from tmmu.engine.policies.swapper import REMEMBER_NS, STAYS, SwapLimits, Swapper
from tmmu.engine.policies.table import SwapPolicy, policy_named
from tmmu.engine.policies.views import NS_PER_SECOND as S
from tmmu.engine.policies.views import Decision, Situation
from tmmu.errors import InvalidConfig, SegmentFull, SessionUnknown


def swapper(policy: str = "lru", device: int = 20, host: int | None = None, **limits: Any) -> Swapper:
    settings: dict[str, Any] = {"chunk": 4, "in_flight": 8, "bytes_per_second": 10} | limits
    return Swapper(policy_named(policy), SwapLimits(device=device, host=host, **settings))


def copy_all(swaps: Swapper, now: int) -> list[tuple[str, int, int]]:
    """Copies until nothing is asked for; (direction, session, bytes) of each chunk."""
    chunks = []
    swaps.decide(now)
    while (chunk := swaps.next_chunk()) is not None:
        chunks.append((chunk.direction, chunk.key, chunk.size))
        if swaps.landed(chunk):
            swaps.decide(now)
    return chunks


def opened(swaps: Swapper, now: int, room: int = 10) -> int:
    """A session that has read its prompt and waits."""
    session = swaps.open(room, now)
    swaps.decide(now)
    assert swaps.take_ready() == [session]
    swaps.write(session, now, live=room, changed=0)
    swaps.begin_wait(session, now)
    return session


def test_idle_sessions_are_copied_early_and_their_room_is_free_at_once() -> None:
    swaps = swapper()
    opened(swaps, 0)
    assert copy_all(swaps, 0) == [("out", 0, 4), ("out", 0, 4), ("out", 0, 2)]
    opened(swaps, 1)
    copy_all(swaps, 1)
    third = swaps.open(10, 2)
    swaps.decide(2)
    assert (swaps.take_ready(), swaps.views[0].location, swaps.free) == ([third], "host", 0)


def test_what_did_not_change_is_not_copied_again() -> None:
    swaps = swapper(device=10)
    opened(swaps, 0)
    copy_all(swaps, 0)
    swaps.need(0, 1)
    swaps.write(0, 1, live=10, changed=3)
    swaps.begin_wait(0, 1)
    assert copy_all(swaps, 1) == [("out", 0, 3)]
    opened(swaps, 2)
    copy_all(swaps, 2)
    swaps.need(0, 3)
    assert copy_all(swaps, 3) == [("in", 0, 4), ("in", 0, 4), ("in", 0, 2)]
    assert swaps.take_ready() == [0]
    swaps.begin_wait(0, 4)
    assert copy_all(swaps, 4) == []


def test_session_that_is_needed_while_it_leaves_stays_and_runs_when_its_chunk_has_landed() -> None:
    swaps = swapper(device=10)
    opened(swaps, 0)
    other = swaps.open(10, 1)
    swaps.decide(1)
    chunk = swaps.next_chunk()
    assert chunk is not None
    assert swaps.views[0].location == "leaving"
    swaps.need(0, 2)
    assert (swaps.take_ready(), swaps.views[0].location) == ([], "device")
    swaps.landed(chunk)
    assert (swaps.take_ready(), swaps.views[0].copied, swaps.next_chunk()) == ([0], 4, None)
    swaps.begin_wait(0, 3)
    copy_all(swaps, 3)
    assert swaps.take_ready() == [other]


def test_swap_in_that_is_needed_meanwhile_goes_before_early_ones() -> None:
    swaps = swapper("hint", device=20)
    for _ in range(4):
        opened(swaps, 0)
        copy_all(swaps, 0)
    for session in range(4):
        swaps.expect(session, 50 * S + session)
    evicted = [view.id for view in swaps.views.values() if view.location == "host"]
    for session in tuple(swaps.views):
        if session not in evicted:
            swaps.close(session)
    swaps.decide(1)
    swaps.need(evicted[1], 2)
    assert [key for _, key, _ in copy_all(swaps, 2)] == [evicted[1]] * 3 + [evicted[0]] * 3


def test_closed_session_gives_back_its_room_when_its_last_chunk_has_landed() -> None:
    swaps = swapper(device=10)
    opened(swaps, 0)
    swaps.decide(0)
    chunk = swaps.next_chunk()
    assert chunk is not None
    swaps.close(0)
    assert swaps.free == 0
    with pytest.raises(SessionUnknown, match="no session 0"):
        swaps.need(0, 1)
    assert swaps.landed(chunk)
    assert (swaps.free, swaps.copied_bytes, swaps.next_chunk()) == (10, 0, None)


def test_full_host_tier_drops_copies_of_sessions_on_the_device_most_recently_used_first() -> None:
    swaps = swapper(device=30, host=25)
    for now in range(3):
        opened(swaps, now)
        copy_all(swaps, now)
    assert [view.copied for view in swaps.views.values()] == [10, 10, 5]
    swaps.open(10, 9)
    swaps.open(10, 9)
    copy_all(swaps, 9)
    assert [view.location for view in swaps.views.values()] == ["host", "host", "device", "device", "device"]
    swaps.open(10, 10)
    copy_all(swaps, 10)
    assert swaps.views[2].location == "device"
    assert swaps.copied_bytes <= 25


def test_only_copies_are_never_dropped_and_whoever_needs_room_waits() -> None:
    swaps = swapper(device=10, host=10)
    opened(swaps, 0)
    copy_all(swaps, 0)
    opened(swaps, 1)
    copy_all(swaps, 1)
    third = swaps.open(10, 2)
    assert copy_all(swaps, 2) == []
    assert (swaps.views[0].copied, swaps.views[1].location, swaps.take_ready()) == (10, "device", [])
    swaps.close(0)
    copy_all(swaps, 3)
    assert swaps.take_ready() == [third]


def test_no_policy_can_have_an_only_copy_dropped() -> None:
    def careless(situation: Situation) -> Decision:
        idle = tuple(view.id for view in situation.sessions if view.is_idle)
        return Decision(evict=idle, fetch=tuple(view.id for view in situation.sessions if not view.live))

    policy = SwapPolicy(name="careless", summary="evicts all", decide=careless)
    swaps = Swapper(policy, SwapLimits(device=20, host=10, chunk=4, in_flight=8, bytes_per_second=10))
    for now in range(2):
        opened(swaps, now)
        copy_all(swaps, now)
    assert [(view.location, view.copied) for view in swaps.views.values()] == [("host", 10), ("device", 0)]


class Gaps:
    """Rooms of a device as unit ranges, first fit, which are free again when they were cleared."""

    def __init__(self, size: int, rooms: dict[int, int]) -> None:
        self.sizes, self.owners = rooms, [-1] * size
        self.cleared: list[int] = []
        self.dropped: list[int] = []

    @property
    def largest_free(self) -> int:
        return max(len(run) for run in "".join("x" if owner >= 0 else "." for owner in self.owners).split("x"))

    def take(self, session: int) -> bool:
        size = self.sizes[session]
        for base in range(len(self.owners) - size + 1):
            if all(owner < 0 for owner in self.owners[base : base + size]):
                self.owners[base : base + size] = [session] * size
                return True
        return False

    def clear(self, session: int) -> None:
        self.cleared.append(session)

    def free(self, swaps: Swapper) -> None:
        """All that was to be cleared is."""
        for session in self.cleared:
            self.owners = [-1 if owner == session else owner for owner in self.owners]
            swaps.end_clearing(self.sizes[session])
        self.cleared = []

    def drop_copy(self, session: int) -> None:
        self.dropped.append(session)


def in_rooms(sizes: list[int], device: int, policy: str = "lru", host: int | None = None) -> tuple[Swapper, Gaps]:
    """Sessions of these rooms that have had a step, copied and idle, as far as there is room."""
    rooms = Gaps(device, dict(enumerate(sizes)))
    limits = SwapLimits(device=device, host=host, chunk=4, in_flight=8, bytes_per_second=10)
    swaps = Swapper(policy_named(policy), limits, rooms)
    for now, size in enumerate(sizes):
        session = swaps.open(size, now)
        swaps.decide(now)
        if swaps.take_ready():
            swaps.write(session, now, live=size, changed=0)
            swaps.begin_wait(session, now)
            copy_all(swaps, now)
    return swaps, rooms


def test_room_is_free_once_it_was_cleared_and_nobody_else_leaves_meanwhile() -> None:
    swaps, rooms = in_rooms([10, 10, 10], device=20)
    assert (rooms.cleared, swaps.free, swaps.is_moving) == ([0], 0, True)
    swaps.decide(5)
    assert [view.location for view in swaps.views.values()] == ["host", "device", "host"]
    rooms.free(swaps)
    swaps.decide(6)
    assert (swaps.take_ready(), rooms.owners.count(2)) == ([2], 10)


def test_others_leave_where_free_rooms_are_apart() -> None:
    swaps, rooms = in_rooms([5, 10, 5], device=20)
    for session in (0, 2):
        assert swaps.evict(session)
    rooms.free(swaps)
    assert (swaps.free, rooms.largest_free) == (10, 5)
    large = swaps.open(10, 9)
    rooms.sizes[large] = 10
    swaps.decide(9)
    assert rooms.cleared == [1]
    rooms.free(swaps)
    swaps.decide(10)
    assert swaps.take_ready() == [large]


def test_session_evicted_by_hand_goes_where_the_host_tier_has_room() -> None:
    swaps, rooms = in_rooms([10, 10], device=20, host=15)
    assert swaps.evict(0)
    assert swaps.views[0].location == "host"
    assert not swaps.evict(1)
    swaps.close(0)
    assert rooms.dropped == [0]
    rooms.free(swaps)
    copy_all(swaps, 9)
    assert swaps.evict(1)


def test_nobody_is_passed_over_for_ever_by_one_that_is_needed_again_while_it_leaves() -> None:
    swaps = swapper(device=10)
    opened(swaps, 0)
    other = swaps.open(10, 1)
    for now in range(2, 2 + STAYS):
        swaps.decide(now)
        assert swaps.views[0].location == "leaving"
        swaps.need(0, now)
        assert swaps.views[0].location == "device"
        swaps.begin_wait(0, now)
    swaps.decide(99)
    swaps.need(0, 99)
    assert swaps.views[0].location == "leaving"
    copy_all(swaps, 99)
    assert swaps.take_ready() == [other]
    swaps.begin_wait(other, 100)
    copy_all(swaps, 100)
    assert swaps.take_ready() == [0]


def test_idle_session_is_not_copied_before_its_grace_is_over() -> None:
    swaps = swapper(policy="hold")
    session = swaps.open(10, 0)
    swaps.decide(0)
    swaps.write(session, 0, live=10, changed=0)
    swaps.begin_wait(session, 5, grace_ns=20)
    assert (swaps.decide(6), swaps.next_chunk()) == (25, None)
    assert (swaps.decide(25), swaps.next_chunk() is None) == (None, False)


def test_stuck_is_who_waited_longest_where_nobody_can_make_room() -> None:
    swaps, _ = in_rooms([10, 10, 10], device=10, host=5)
    assert swaps.stuck() == 1
    swaps.need(0, 9)  # it will have its step, and may go then
    assert swaps.stuck() is None
    assert in_rooms([10, 10], device=10, policy="hold")[0].stuck() is None
    moving, rooms = in_rooms([10, 10], device=10)
    assert (rooms.cleared, moving.stuck()) == ([0], None)


def test_refusals() -> None:
    swaps = swapper()
    with pytest.raises(SegmentFull, match="21 bytes does not fit on a device of 20"):
        swaps.open(21, 0)
    with pytest.raises(SessionUnknown):
        swaps.close(0)
    session = opened(swaps, 0)
    with pytest.raises(InvalidConfig, match="report steps of sessions that can run"):
        swaps.write(session, 1, live=10, changed=1)
    for limits in ({"device": 0}, {"host": -1}, {"bytes_per_second": 0}, {"in_flight": 3}):
        with pytest.raises(InvalidConfig):
            swapper(**limits)  # type: ignore[arg-type]


def test_room_is_kept_for_classes_that_were_there_lately() -> None:
    swaps = swapper(policy="hold", device=40, headroom=(8, 8))
    quick = swaps.open(10, 0, rank=0)
    assert swaps.situation(0).bounds == (40,)
    swaps.open(10, 1, rank=2)
    assert swaps.situation(1).bounds == (40, 32, 32)
    swaps.open(10, 2, rank=1)
    assert swaps.situation(2).bounds == (40, 32, 24)
    swaps.close(quick)
    assert swaps.situation(2 + REMEMBER_NS).bounds == (40, 32, 24)
    assert swaps.situation(3 + REMEMBER_NS).bounds == (40, 40, 32)
    assert swapper(device=40).situation(0).bounds == ()


def test_evictions_are_late_where_somebody_waits_for_room() -> None:
    swaps = swapper(host=100)
    first, second = opened(swaps, 0), opened(swaps, 1)
    copy_all(swaps, 2)
    assert swaps.evict(first)
    assert (swaps.evicted_early, swaps.evicted_late) == (1, 0)
    opened(swaps, 3)
    assert (swaps.evicted_early, swaps.evicted_late) == (1, 0)
    swaps.open(10, 4)
    swaps.decide(4)
    assert swaps.views[second].location == "host"
    assert (swaps.evicted_early, swaps.evicted_late) == (1, 1)
