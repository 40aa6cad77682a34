"""One timer for the deadlines of all requests of a connection: a request that is answered in time moves none."""

import asyncio
from collections.abc import Callable
from time import monotonic


class DeadlineTimer:
    """The event loop's. ``ring`` ends what is late at a moment, and returns the next deadline, ``None`` where none is.

    It rings at the earliest deadline that it was told of, though the request may have its answer: so at most once for
    each request, and not at all for most.
    """

    def __init__(self, ring: Callable[[float], float | None]) -> None:
        self._ring, self._loop = ring, asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._due = 0.0

    def is_before(self, deadline: float) -> bool:
        """Whether ``deadline`` is to be noted: it would ring too late, or not at all. For any thread."""
        return self._handle is None or deadline < self._due

    def note(self, deadline: float) -> None:
        """Something is late from ``deadline`` on, in seconds of ``monotonic``."""
        if self.is_before(deadline):
            self.stop()
            self._due = deadline
            self._handle = self._loop.call_later(deadline - monotonic(), self._end_late)

    def stop(self) -> None:
        """Rings no more for what it was told."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _end_late(self) -> None:
        self._handle = None
        following = self._ring(max(monotonic(), self._due))  # the loop may ring a little early
        if following is not None:
            self.note(following)
