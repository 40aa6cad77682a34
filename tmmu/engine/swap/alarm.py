"""An alarm: a thread, started when it is first set, that makes a call at a time and sleeps until then."""

from collections.abc import Callable
from threading import Condition, Thread
from typing import Final

NS_PER_SECOND: Final = 10**9
JOIN_SECONDS: Final = 60.0


class Alarm:
    """``ring`` is called at the earliest time that was set, by the clock; then that time is forgotten.

    ``clock``: ns. Locks: ``ring`` is called with none held, and ``set_by`` takes one of its own alone.
    """

    def __init__(self, clock: Callable[[], int], ring: Callable[[], object]) -> None:
        self._clock, self._ring = clock, ring
        self._changed = Condition()
        self._at_ns: int | None = None
        self._thread: Thread | None = None
        self._is_open = True

    def set_by(self, at_ns: int | None) -> None:
        """Rings at this time, unless it rings before; nothing for ``None``."""
        if at_ns is None:
            return
        with self._changed:
            if not self._is_open or (self._at_ns is not None and self._at_ns <= at_ns):
                return
            self._at_ns = at_ns
            if self._thread is None:
                self._thread = Thread(target=self._work, name="tmmu-alarm", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self) -> None:
        """Never rings again, and the thread has ended. May be called twice."""
        with self._changed:
            self._is_open = False
            thread, self._thread = self._thread, None
            self._changed.notify_all()
        if thread is not None:
            thread.join(JOIN_SECONDS)

    def _work(self) -> None:
        while True:
            with self._changed:
                while self._is_open and (self._at_ns is None or (remaining := self._at_ns - self._clock()) > 0):
                    self._changed.wait(None if self._at_ns is None else remaining / NS_PER_SECOND)
                if not self._is_open:
                    return
                self._at_ns = None
            self._ring()
