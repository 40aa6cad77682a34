"""Slots: each class that was there lately keeps some from those below it."""

from hypothesis import given
from hypothesis import strategies as st

from tmmu.engine.queue.terms import CLASSES
from tmmu.server.admission.class_slots import REMEMBER_SECONDS, ClassSlots


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_all_slots_are_for_a_class_that_is_alone() -> None:
    for qos in CLASSES:
        slots = ClassSlots(10, 0.2, Time())
        assert slots.take(qos, 10)
        assert not slots.take(qos, 1)
        slots.give_back(qos, 4)
        assert slots.taken == 6


def test_slots_are_kept_for_who_was_there_and_not_for_ever() -> None:
    time = Time()
    slots = ClassSlots(10, 0.2, time)
    assert slots.take("realtime", 1)
    slots.give_back("realtime", 1)
    assert [slots.limit_of(qos) for qos in CLASSES] == [10, 8, 8]
    assert slots.take("interactive", 1)
    assert [slots.limit_of(qos) for qos in CLASSES] == [10, 8, 6]
    assert not slots.take("batch", 7)
    assert slots.take("batch", 6)
    assert not slots.take("interactive", 2)
    assert slots.take("interactive", 1)
    assert slots.take("realtime", 2)
    assert not slots.take("realtime", 1)
    slots.give_back("realtime", 2)
    time.now = REMEMBER_SECONDS
    assert [slots.limit_of(qos) for qos in CLASSES] == [10, 10, 8]
    slots.give_back("interactive", 2)  # it was there until now
    time.now += REMEMBER_SECONDS - 1
    assert [slots.limit_of(qos) for qos in CLASSES] == [10, 10, 8]
    time.now += 1
    assert [slots.limit_of(qos) for qos in CLASSES] == [10, 10, 10]


@given(st.lists(st.tuples(st.sampled_from(CLASSES), st.integers(-4, 6)), max_size=60))
def test_no_class_ever_has_more_than_its_limit(acts: list[tuple[str, int]]) -> None:
    slots = ClassSlots(12, 0.25, Time())
    taken = dict.fromkeys(CLASSES, 0)
    for qos, count in acts:
        if count <= 0:
            fewer = min(-count, taken[qos])  # type: ignore[index]
            slots.give_back(qos, fewer)  # type: ignore[arg-type]
            taken[qos] -= fewer  # type: ignore[index]
        else:
            limit, below = slots.limit_of(qos), CLASSES[CLASSES.index(qos) :]  # type: ignore[arg-type]
            fits = sum(taken.values()) + count <= 12 and sum(taken[each] for each in below) + count <= limit
            assert slots.take(qos, count) == fits  # type: ignore[arg-type]
            taken[qos] += count * fits  # type: ignore[index]
        assert slots.taken == sum(taken.values()) <= 12
