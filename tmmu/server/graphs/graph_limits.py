"""What graphs of one client may take, and what it has taken."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from time import monotonic

from tmmu.errors import QuotaExceeded


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLimits:
    """Of one client, all its connections together.

    ``bytes``: of contents, graphs under way and memory of plans. ``contents``: how many. ``operators`` and ``seconds``
    may be run in each ``window`` seconds. ``window_elements``: the most that one window of a content may show, since
    a stride of 0 shows more than there is. ``multiply_adds``: of one call, in those of float32, since nothing ends it
    before its end. ``graphs``, ``forms``: kept for each connection, the oldest go first; all of them together have
    ``recorded`` bytes as they travel, for some thirty times as many in memory. ``plans``: bound for each connection.
    ``trial``: seconds that a run of a graph may take for it to be bound, since traces and draws of others wait for its
    trials. ``planned``: bytes of memory of plans, of all clients together.
    """

    bytes: int = 4 << 30
    contents: int = 100_000
    operators: int = 10_000_000
    seconds: float = 60.0
    window: float = 60.0
    window_elements: int = 1 << 31
    multiply_adds: int = 1 << 37
    graphs: int = 256
    forms: int = 16_384
    plans: int = 16
    recorded: int = 16 << 20
    trial: float = 1.0
    planned: int = 512 << 20


class ClientUsage:
    """What one client takes now. Safe between threads."""

    def __init__(self, limits: GraphLimits, clock: Callable[[], float] = monotonic) -> None:
        self._limits, self._clock, self._lock = limits, clock, Lock()
        self._bytes = self._contents = self._operators = self._recorded = 0
        self._seconds, self._window_start = 0.0, clock()
        self.planning = Lock()
        """Of the one graph of the client that is planned: planning takes several times the memory of a plan."""

    @property
    def bytes(self) -> int:
        """Bytes that it has now."""
        return self._bytes

    @property
    def contents(self) -> int:
        """Contents that it has now."""
        return self._contents

    def reserve(self, size: int, contents: int = 0) -> None:
        """Counts bytes and contents before they are allocated; ``QUOTA_EXCEEDED`` where it may not have them."""
        with self._lock:
            if self._bytes + size > self._limits.bytes:
                raise QuotaExceeded(
                    f"{size} bytes more than the {self._bytes} there are, of {self._limits.bytes}",
                    fix="delete tensors, or record less before a value is looked at",
                )
            if self._contents + contents > self._limits.contents:
                raise QuotaExceeded(f"more than {self._limits.contents} tensors", fix="delete tensors")
            self._bytes += size
            self._contents += contents

    def release(self, size: int, contents: int = 0) -> None:
        """Gives back what was reserved."""
        with self._lock:
            self._bytes -= size
            self._contents -= contents

    @property
    def recorded(self) -> int:
        """Bytes of the forms and graphs that are kept for it, as they travel."""
        return self._recorded

    def may_record(self, size: int) -> bool:
        """Whether so many bytes of forms and graphs more may be kept; they count then."""
        with self._lock:
            fits = self._recorded + size <= self._limits.recorded
            self._recorded += size * fits
        return fits

    def forget_recorded(self, size: int) -> None:
        """So many bytes of forms and graphs are kept no more."""
        with self._lock:
            self._recorded -= size

    @contextmanager
    def borrow(self, size: int) -> Iterator[None]:
        """Block for which so many bytes are reserved."""
        self.reserve(size)
        try:
            yield
        finally:
            self.release(size)

    def require_time(self, operators: int) -> None:
        """``QUOTA_EXCEEDED`` where the window has no room for so many operators, or no time is left in it."""
        with self._lock:
            now = self._clock()
            if now - self._window_start >= self._limits.window:
                self._window_start, self._operators, self._seconds = now, 0, 0.0
            if self._operators + operators > self._limits.operators or self._seconds >= self._limits.seconds:
                raise QuotaExceeded(
                    f"{self._operators} operators in {self._seconds:.0f} s, of {self._limits.operators} in "
                    f"{self._limits.seconds:.0f} s for each {self._limits.window:.0f} s",
                    fix="wait, or run less",
                )
            self._operators += operators

    def spend(self, seconds: float) -> None:
        """Counts what a run took."""
        with self._lock:
            self._seconds += seconds

    @contextmanager
    def spend_time(self) -> Iterator[Callable[[], None]]:
        """Block whose time counts while it goes on, so that blocks of several connections end each other.

        It is given a function that counts up to now: ``QUOTA_EXCEEDED`` once no time is left.
        """
        before = self._clock()

        def count() -> None:
            nonlocal before
            now = self._clock()
            self.spend(now - before)
            before = now

        def require_rest() -> None:
            count()
            if self._seconds > self._limits.seconds:
                raise QuotaExceeded("the run takes longer than its client may", fix="run less at once")

        try:
            yield require_rest
        finally:
            count()
