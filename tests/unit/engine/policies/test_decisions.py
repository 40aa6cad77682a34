"""Each policy on situations that are worked out by hand. Rooms are 10 bytes, times are seconds."""

from collections.abc import Mapping
from typing import Any

import pytest

from tmmu.engine.policies.hint import decide_hint
from tmmu.engine.policies.hold import decide_hold
from tmmu.engine.policies.idle import decide_idle
from tmmu.engine.policies.lru import decide_lru
from tmmu.engine.policies.predicted import decide_predicted
from tmmu.engine.policies.static import decide_static
from tmmu.engine.policies.table import POLICIES, policy_named
from tmmu.engine.policies.views import NS_PER_SECOND as S
from tmmu.engine.policies.views import Decision, LinkView, SessionView, Situation
from tmmu.errors import InvalidConfig


def view(number: int, location: str, last_op: float = 0, **fields: Any) -> SessionView:
    """An idle, clean session of 10 bytes; ``needed`` and ``expected`` in seconds."""
    times = {name: round(fields.pop(key) * S) for key, name in NAMES.items() if fields.get(key) is not None}
    columns = {"room": 10, "live": 10, "copied": 10} | fields | times
    return SessionView(id=number, location=location, last_op_ns=round(last_op * S), **columns)  # type: ignore[arg-type]


NAMES = {"needed": "needed_since_ns", "expected": "expected_ns"}


def situation(
    now: float,
    *sessions: SessionView,
    free: int = 0,
    host_room: int | None = None,
    history: Mapping[str, tuple[int, ...]] | None = None,
    rate: int = 10,
    bounds: tuple[int, ...] = (),
) -> Situation:
    """A link of 10 bytes a second: a session takes a second."""
    taken = sum(session.room for session in sessions if session.location != "host")
    return Situation(
        now_ns=round(now * S),
        budget=taken + free,
        free=free,
        sessions=sessions,
        link=LinkView(bytes_per_second=rate),
        host_room=host_room,
        history=history or {},
        time_to_live_ns=100 * S,
        bounds=bounds,
    )


def moves(decision: Decision) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return decision.evict, decision.fetch


def test_lru_evicts_the_oldest_when_somebody_needs_room_and_nobody_else() -> None:
    sessions = (view(0, "device", 5), view(1, "device", 3), view(2, "host", 1))
    assert moves(decide_lru(situation(50, *sessions))) == ((), ())
    assert moves(decide_lru(situation(50, *sessions, view(3, "host", needed=49)))) == ((1,), (3,))


def test_room_of_a_dirty_session_is_free_only_when_it_has_left() -> None:
    sessions = (view(0, "device", 5, copied=9), view(1, "host", needed=49))
    assert moves(decide_lru(situation(50, *sessions))) == ((0,), ())
    leaving = (view(0, "leaving", 5, copied=9), view(1, "host", needed=49))
    assert moves(decide_lru(situation(50, *leaving))) == ((), ())


def test_needed_sessions_are_served_in_the_order_in_which_they_were_needed() -> None:
    waiting = (view(0, "host", needed=3), view(1, "host", needed=2, room=25), view(2, "host", needed=4))
    assert moves(decide_lru(situation(5, *waiting, free=20))) == ((), ())
    assert moves(decide_lru(situation(5, *waiting, free=35))) == ((), (1, 0))


def test_nobody_overtakes_whoever_waits_for_room_that_is_being_freed() -> None:
    waiting = (view(0, "leaving", copied=0), view(1, "host", needed=2, room=15), view(2, "host", needed=3, room=5))
    assert moves(decide_lru(situation(5, *waiting, free=5))) == ((), ())


def test_room_that_is_being_freed_is_promised_once() -> None:
    sessions = (view(0, "leaving", copied=0), view(1, "device", 1), view(2, "device", 2))
    waiting = (view(3, "host", needed=2), view(4, "host", needed=3))
    assert moves(decide_lru(situation(5, *sessions, *waiting))) == ((1,), ())
    due = (view(3, "host", 0, expected=5), view(4, "host", 0, expected=6))
    assert moves(decide_hint(situation(5, *sessions, *due))) == ((1,), (4,))


def test_a_session_that_somebody_needs_is_no_victim() -> None:
    sessions = (view(0, "device", needed=1), view(1, "host", needed=2))
    assert all(moves(policy.decide(situation(5, *sessions))) == ((), ()) for policy in POLICIES)


def test_sessions_go_at_the_end_of_their_time_to_live_unless_they_are_expected_later() -> None:
    sessions = (view(0, "device", 5), view(1, "device", 8), view(2, "device", 5, expected=50))
    decision = decide_lru(situation(105, *sessions))
    assert (decision.evict, decision.ask_again_ns) == ((0,), 108 * S)


def test_victims_are_only_those_that_the_host_tier_can_take() -> None:
    sessions = (
        view(0, "device", 5, live=9, copied=9),
        view(1, "device", 6, live=3, copied=3),
        view(2, "host", needed=1),
    )
    assert moves(decide_lru(situation(50, *sessions, host_room=4))) == ((1,), (2,))
    assert moves(decide_lru(situation(50, *sessions, host_room=2))) == ((), ())
    both = (*sessions[:2], view(2, "host", needed=1, room=20))
    assert moves(decide_lru(situation(50, *both, host_room=11))) == ((0,), ())
    assert moves(decide_lru(situation(50, *both, host_room=12))) == ((0, 1), (2,))


def test_idle_evicts_after_a_second_and_says_when_to_ask_again() -> None:
    decision = decide_idle(situation(10, view(0, "device", 9), view(1, "device", 9.25), view(2, "device", needed=1)))
    assert decision == Decision(evict=(0,), ask_again_ns=round(10.25 * S))


def test_idle_evicts_sooner_where_somebody_needs_the_room() -> None:
    assert moves(decide_idle(situation(10, view(0, "device", 9.5), view(1, "host", needed=9)))) == ((0,), (1,))


def test_hint_evicts_whoever_is_expected_last() -> None:
    sessions = (view(0, "device", 1, expected=30), view(1, "device", 2, expected=40), view(2, "device", 3, expected=20))
    assert moves(decide_hint(situation(4, *sessions, view(3, "host", needed=4)))) == ((1,), (3,))


def test_hint_fetches_what_is_nearly_due_in_place_of_whoever_is_expected_later() -> None:
    """Due a tenth of its wait and twice its copy before 20: at 20 - 2 - 2."""
    sessions = (view(0, "device", 1, expected=90), view(1, "host", 0, expected=20))
    early = decide_hint(situation(10, *sessions))
    assert early == Decision(ask_again_ns=16 * S)
    assert moves(decide_hint(situation(16, *sessions))) == ((0,), (1,))
    sooner = (view(0, "device", 1, expected=18), view(1, "host", 0, expected=20))
    assert moves(decide_hint(situation(16, *sooner))) == ((), ())


def test_hint_fetches_into_free_room_at_once_next_expected_first() -> None:
    sessions = (view(0, "host", 1, expected=90), view(1, "host", 0, expected=20), view(2, "host", 0))
    assert moves(decide_hint(situation(2, *sessions, free=10))) == ((), (1,))
    assert moves(decide_hint(situation(2, *sessions, free=30))) == ((), (1, 0))


def test_nobody_is_fetched_early_while_somebody_waits_for_room() -> None:
    sessions = (view(0, "host", needed=1, room=30), view(1, "host", 0, expected=3), view(2, "device", needed=1))
    assert moves(decide_hint(situation(2, *sessions, free=20))) == ((), ())


def test_overdue_session_is_expected_after_as_long_again() -> None:
    """Session 0 is 1 s overdue, expected at 12; session 1 at 15."""
    sessions = (view(0, "device", 0, expected=10), view(1, "device", 0, expected=15), view(2, "host", needed=11))
    assert moves(decide_hint(situation(11, *sessions))) == ((1,), (2,))
    longer = (view(0, "device", 0, expected=10), view(1, "device", 0, expected=30), view(2, "host", needed=25))
    assert moves(decide_hint(situation(25, *longer))) == ((0,), (2,))


def test_session_that_resumes_soon_is_fetched() -> None:
    sessions = (view(0, "device", 19, expected=90), view(1, "host", 0, expected=20))
    assert moves(decide_hint(situation(20, *sessions))) == ((0,), (1,))


def test_predicted_needs_four_waits_of_a_kind_and_then_fetches_before_they_end() -> None:
    sessions = (view(0, "device", 7, wait_kind="user"), view(1, "host", 0, wait_kind="tool"))
    history = {"tool": (9 * S, 10 * S, 10 * S), "user": (60 * S,) * 4}
    assert moves(decide_predicted(situation(8, *sessions, history=history))) == ((), ())
    history["tool"] = (9 * S, 10 * S, 10 * S, 11 * S)
    assert decide_predicted(situation(6, *sessions, history=history)) == Decision(ask_again_ns=7 * S)
    assert moves(decide_predicted(situation(7, *sessions, history=history))) == ((0,), (1,))


def test_predicted_looks_at_those_waits_alone_that_took_longer_than_this_one_has() -> None:
    """After 5 s, session 0 is expected 40 s after its step, session 1 at 20 s."""
    history = {"a": (S, 2 * S, 3 * S, 40 * S), "b": (20 * S,) * 4}
    sessions = (view(0, "device", 0, wait_kind="a"), view(1, "device", 0, wait_kind="b"), view(2, "host", needed=5))
    assert moves(decide_predicted(situation(5, *sessions, history=history))) == ((0,), (2,))


def test_predicted_does_not_know_what_clients_say() -> None:
    sessions = (view(0, "device", 1, expected=90), view(1, "host", 0, expected=20))
    assert moves(decide_predicted(situation(19.5, *sessions))) == ((), ())


def test_hold_has_higher_classes_first_as_if_lower_ones_had_come_later() -> None:
    batch, quick = view(0, "host", needed=10, rank=2), view(1, "host", needed=18, rank=0)
    assert moves(decide_hold(situation(50, batch, quick, free=10))) == ((), (1,))
    late = view(1, "host", needed=21, rank=0)
    assert moves(decide_hold(situation(50, batch, late, free=10))) == ((), (0,))


def test_hold_keeps_room_for_higher_classes() -> None:
    there = (view(0, "device", needed=1, rank=2), view(1, "device", needed=1, rank=2))
    waiting = (
        view(2, "host", needed=2, rank=2),
        view(3, "host", needed=30, rank=1),
        view(4, "host", needed=30, rank=1),
    )
    bounds = (50, 40, 20)
    assert moves(decide_hold(situation(50, *there, *waiting, free=30, bounds=bounds))) == ((), (3, 4))
    assert moves(decide_hold(situation(50, *there, *waiting, free=30))) == ((), (2, 3, 4))
    alone = view(5, "host", needed=2, rank=2, room=30)
    assert moves(decide_hold(situation(50, alone, free=30, bounds=(30, 20, 10)))) == ((), (5,))


def test_hold_lets_a_higher_class_into_its_own_room_past_a_session_that_waits() -> None:
    there = (view(0, "device", needed=1, rank=2), view(1, "device", needed=1, rank=2))
    large = view(2, "host", needed=2, rank=2, room=30)
    quick = [view(number, "host", needed=40, rank=0) for number in (3, 4)]
    decision = decide_hold(situation(50, *there, large, *quick, free=20, bounds=(40, 40, 30)))
    assert (moves(decision), decision.ask_again_ns) == (((), (3,)), 60 * S)
    assert moves(decide_hold(situation(50, *there, large, *quick, free=20))) == ((), ())


def test_hold_evicts_nobody_and_fetches_into_free_room() -> None:
    sessions = (view(0, "device", 0), view(1, "host", needed=1), view(2, "host", needed=2))
    assert moves(decide_hold(situation(500, *sessions))) == ((), ())
    assert moves(decide_hold(situation(500, *sessions, free=10))) == ((), (1,))


def test_static_swaps_within_a_partition_alone() -> None:
    """Three partitions: 0, 3 in the first; 1 in the second; 2 in the third, empty one."""
    sessions = (view(0, "device", 9), view(1, "device", 1), view(3, "host", needed=9))
    assert moves(decide_static(situation(10, *sessions, free=10))) == ((0,), (3,))
    active = (view(0, "device", needed=8), view(1, "device", 1), view(3, "host", needed=9))
    assert moves(decide_static(situation(10, *active, free=10))) == ((), ())
    dirty = (view(0, "device", 9, copied=0), view(1, "device", 1), view(3, "host", needed=9))
    assert moves(decide_static(situation(10, *dirty, free=10))) == ((0,), ())


def test_a_policy_that_is_not_in_the_table_is_refused_with_the_names() -> None:
    with pytest.raises(InvalidConfig, match=r"'fifo' \(choose one of lru, idle, hint, predicted, hold, static\)"):
        policy_named("fifo")
    assert [policy_named(policy.name) for policy in POLICIES] == list(POLICIES)
