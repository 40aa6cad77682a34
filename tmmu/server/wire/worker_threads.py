"""Threads that answer requests: each takes the next one, and as many are started as there are requests at once."""

from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread

_JOIN_SECONDS = 60.0


class WorkerThreads:
    """At most ``most`` threads. A request costs one put into a queue; a pool of futures costs three locks beside it."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._lock = Lock()
        self._idle = 0
        """Threads that have nothing to do, less what waits for one."""

    def submit(self, work: Callable[[], object]) -> None:
        """Has ``work`` run, which may not raise; behind others where all threads have some, and none can be started."""
        with self._lock:
            if self._idle > 0 or not self._start_thread():
                self._idle -= 1
        self._queue.put(work)

    def _start_thread(self) -> bool:
        """Whether there is one more, for which there is work; with the lock."""
        if len(self._threads) >= self._most:
            return False
        thread = Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has none; who submits is an event loop, which would lose what it is about
            return False
        self._threads.append(thread)
        return True

    def close(self) -> None:
        """Ends the threads, once they have done what they were given."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
            del work  # with all that it has: payloads of a request would stay with a thread that has nothing to do
            with self._lock:
                self._idle += 1
