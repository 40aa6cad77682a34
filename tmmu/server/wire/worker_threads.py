"""Threads that answer requests: who was done last takes the next one, and as many are started as there are requests."""

from collections import deque
from collections.abc import Callable
from threading import Lock, Thread
from typing import TypeAlias

_JOIN_SECONDS = 60.0
_Work: TypeAlias = Callable[[], object]


class WorkerThreads:
    """At most ``most`` threads. A request costs one lock and one wake; a pool of futures costs three locks beside it.

    The thread that was done last is woken first: what it needs is still near its processor.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._lock = Lock()
        self._threads: list[_Worker] = []
        self._parked: list[_Worker] = []
        """Those that have nothing to do; with the lock, as what follows."""
        self._waiting = deque[_Work]()
        self._is_closing = False

    def submit(self, work: _Work) -> None:
        """Has ``work`` run, which may not raise; behind others where all threads have some, and none can be started."""
        with self._lock:
            if self._parked:
                worker = self._parked.pop()
                worker.work = work
            else:
                self._waiting.append(work)
                self._start_thread()
                return
        worker.wake.release()

    def _start_thread(self) -> None:
        """One more, which takes what waits, where there may be one; with the lock."""
        if len(self._threads) >= self._most:
            return
        worker = _Worker(self._run, f"{self._name}-{len(self._threads)}")
        try:
            worker.start()
        except RuntimeError:  # the system has none; who submits is an event loop, which would lose what it is about
            return
        self._threads.append(worker)

    @property
    def has_spare(self) -> bool:
        """Whether more than half of all threads that there may be have nothing to do."""
        return 2 * (len(self._threads) - len(self._parked)) < self._most

    def close(self) -> None:
        """Ends the threads, once they have done what they were given."""
        with self._lock:
            self._is_closing, parked = True, tuple(self._parked)
            self._parked.clear()
        for worker in parked:
            worker.wake.release()
        for worker in self._threads:
            worker.join(_JOIN_SECONDS)

    def _run(self, worker: "_Worker") -> None:
        while self._has_next(worker):
            worker.take()()

    def _has_next(self, worker: "_Worker") -> bool:
        """Waits for something to do; ``False`` at the end of all threads."""
        with self._lock:
            if self._waiting:
                worker.work = self._waiting.popleft()
                return True
            if self._is_closing:
                return False
            self._parked.append(worker)
        worker.wake.acquire()
        return worker.work is not None


class _Worker(Thread):
    """A thread, what it is to do, and what it waits for while that is nothing."""

    def __init__(self, run: "Callable[[_Worker], object]", name: str) -> None:
        super().__init__(target=lambda: run(self), name=name, daemon=True)
        self.work: _Work | None = None
        self.wake = Lock()
        self.wake.acquire()

    def take(self) -> _Work:
        """What it is to do, which it has no more: payloads of a request would stay with a thread that is done."""
        work, self.work = self.work, None
        assert work is not None
        return work
