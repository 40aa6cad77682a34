"""The alarm rings at the earliest time that was set, once, and has no thread before."""

from threading import Event, active_count
from time import monotonic_ns

from tmmu.engine.swap.alarm import Alarm

LONG = 60.0
SECOND = 10**9


def test_alarm_rings_at_the_earliest_time_and_once() -> None:
    rung, times = Event(), list[int]()
    now = 5 * SECOND

    def ring() -> None:
        times.append(now)
        rung.set()

    before = active_count()
    alarm = Alarm(lambda: now, ring)
    alarm.set_by(None)
    assert active_count() == before
    alarm.set_by(3000 * SECOND)
    assert active_count() == before + 1
    assert not rung.is_set()
    alarm.set_by(4000 * SECOND)
    alarm.set_by(4 * SECOND)  # sooner than what it sleeps for
    assert rung.wait(LONG)
    alarm.close()
    alarm.close()
    assert (len(times), active_count()) == (1, before)
    alarm.set_by(0)
    assert active_count() == before


def test_alarm_sleeps_until_its_time() -> None:
    rung = list[int]()
    done = Event()
    alarm = Alarm(monotonic_ns, lambda: (rung.append(monotonic_ns()), done.set()))
    at = monotonic_ns() + SECOND // 50
    alarm.set_by(at)
    assert done.wait(LONG)
    assert rung[0] >= at
    alarm.close()
