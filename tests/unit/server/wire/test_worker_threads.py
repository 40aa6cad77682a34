"""Threads that answer requests: what they leave behind."""

from threading import Event
from weakref import finalize

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
