"""Threads that answer requests: what they leave behind, and what waits for one."""

from threading import Barrier, Event, Semaphore, Thread, current_thread
from weakref import finalize

import pytest

from tests.waiting import wait_for
from tmmu.server.wire.worker_threads import WorkerThreads


class Payload:
    """Memory of a request."""


def test_a_thread_with_nothing_to_do_has_nothing_of_a_request() -> None:
    threads = WorkerThreads(1, "test")
    is_gone = Event()
    payload = Payload()
    finalize(payload, is_gone.set)
    threads.submit(lambda kept=payload: None)  # type: ignore[misc]
    del payload
    assert is_gone.wait(5)
    threads.close()


def test_work_waits_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, done = WorkerThreads(2, "few"), Semaphore(0)
    with monkeypatch.context() as context:
        context.setattr("tmmu.server.wire.worker_threads.Thread.start", _refuse)
        threads.submit(done.release)
        threads.submit(done.release)
    threads.submit(done.release)
    for _ in range(3):
        assert done.acquire(timeout=60)
    begun = Barrier(2)  # both threads are there, one at least of them still to be started
    for _ in range(2):
        threads.submit(lambda: begun.wait(60))
    threads.close()
    assert not begun.broken
    assert len(threads._threads) == 2


def test_the_thread_that_was_done_last_takes_the_next_one() -> None:
    threads, names, both = WorkerThreads(2, "two"), list[str](), Barrier(3)
    for _ in range(2):
        threads.submit(lambda: both.wait(60))
    both.wait(60)
    wait_for(lambda: len(threads._parked) == 2)
    for _ in range(10):
        threads.submit(lambda: names.append(current_thread().name))
        wait_for(lambda: len(threads._parked) == 2)
    threads.close()
    assert len(names) == 10
    assert len(set(names)) == 1


def _refuse(thread: Thread) -> None:
    raise RuntimeError("can't start new thread")
