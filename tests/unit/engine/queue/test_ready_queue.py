"""The ready queue against a model of a few lines: who is next, and how long anybody waits at most."""

from hypothesis import given
from hypothesis import strategies as st

from tmmu.engine.queue.ready_queue import ReadyQueue


def test_first_come_first_served_until_there_are_too_many() -> None:
    queue: ReadyQueue[int] = ReadyQueue(overload=3, patience=2)
    for item in range(3):
        queue.push(item)
    assert queue.take(1, lambda _: True) == [0]
    for item in (3, 4):
        queue.push(item)
    assert queue.take(1, lambda _: True) == [4]
    assert queue.take(3, lambda _: True) == [1, 2, 3]
    assert queue.take(1, lambda _: True) == []


def test_whoever_was_passed_often_enough_is_next() -> None:
    queue: ReadyQueue[int] = ReadyQueue(overload=1, patience=2)
    for item in range(4):
        queue.push(item)
    assert queue.take(1, lambda _: True) == [3]
    queue.push(4)
    assert queue.take(1, lambda _: True) == [4]
    queue.push(5)
    assert [queue.order()[0], *queue.take(1, lambda _: True)] == [0, 0]
    assert queue.take(2, lambda _: True) == [1, 2]


def test_items_that_do_not_fit_wait_where_they_are() -> None:
    queue: ReadyQueue[int] = ReadyQueue()
    for item in range(6):
        queue.push(item)
    assert queue.count(lambda item: item % 2 == 1) == 3
    assert queue.take(2, lambda item: item % 2 == 1) == [1, 3]
    assert queue.remove(4)
    assert not queue.remove(4)
    assert queue.take(9, lambda _: True) == [0, 2, 5]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=120), st.integers(1, 4), st.integers(0, 5), st.integers(1, 3))
def test_nobody_waits_longer_than_stated(pushes: list[int], overload: int, patience: int, limit: int) -> None:
    queue: ReadyQueue[tuple[int, int]] = ReadyQueue(overload=overload, patience=patience)
    number, takes, latest = 0, 0, {}
    served = []
    while number < len(pushes) or len(queue):
        for _ in range(pushes[takes % len(pushes)] if number < len(pushes) else 0):
            latest[number] = takes + patience + len(queue) + 1
            queue.push((number, takes))
            number += 1
        if number < len(pushes) and not len(queue):
            number += 1
            continue
        taken = queue.take(limit, lambda _: True)
        takes += 1
        for item, _ in taken:
            assert takes <= latest[item]
            served.append(item)
    assert sorted(served) == sorted(latest)
