"""Stages of a request: where it is, and how long it was in each. What they took adds up to its wall time.

One clock, and one mark for each change: a stage begins where the one before ends, so that nothing is lost or counted
twice. While texts are generated each has a timeline of its own, a branch of the request's; the request goes on with
that of the text that ended last.
"""

from collections.abc import Callable, Mapping
from logging import DEBUG
from threading import RLock
from time import monotonic
from typing import Final, Literal, TypeAlias

from tmmu.server.logs import log_event
from tmmu.wire.trace_context import TraceContext

Stage: TypeAlias = Literal["network", "serialize", "queue", "lookup", "execute", "result"]
STAGES: Final[tuple[Stage, ...]] = ("network", "serialize", "queue", "lookup", "execute", "result")
"""Reading and sending; decoding a body and its texts; waiting for steps; planning a step; running it; choosing tokens
and making the answer of them."""


class StageTimeline:
    """Begins in ``network``. For any thread: a step of a text may end while the text does."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock, self._lock = clock, RLock()
        self._begin = self._mark = clock()
        self.stage: Stage = "network"
        self._seconds: dict[Stage, float] = {}

    def enter(self, stage: Stage) -> None:
        """From now on it is in this stage."""
        with self._lock:
            now = self._clock()
            self._seconds[self.stage] = self._seconds.get(self.stage, 0.0) + now - self._mark
            self.stage, self._mark = stage, now

    def move(self, source: Stage, target: Stage, seconds: float) -> None:
        """Of what ``source`` has taken so far, so many seconds, if it has as many, were ``target``'s."""
        with self._lock:
            self.enter(self.stage)
            moved = min(max(seconds, 0.0), self._seconds.get(source, 0.0))
            self._seconds[source] = self._seconds.get(source, 0.0) - moved
            self._seconds[target] = self._seconds.get(target, 0.0) + moved

    def branch(self) -> "StageTimeline":
        """One that goes on by itself, from the same beginning."""
        other = StageTimeline(self._clock)
        other.take_over(self)
        return other

    def take_over(self, other: "StageTimeline") -> None:
        """Goes on where another one is."""
        self._begin, self._mark, self.stage = other._begin, other._mark, other.stage
        self._seconds = dict(other._seconds)

    def end(self) -> float:
        """Ends the stage that it is in; seconds since the beginning, which are those of all stages together."""
        self.enter(self.stage)
        return self._mark - self._begin

    @property
    def seconds(self) -> Mapping[Stage, float]:
        """What each stage has taken up to the last mark, in the order of stages."""
        return {stage: self._seconds[stage] for stage in STAGES if stage in self._seconds}


def log_spans(trace: TraceContext, stages: Mapping[Stage, float]) -> None:
    """A span for each stage, at level ``debug``: children of the request's."""
    for number, (stage, seconds) in enumerate(stages.items(), 1):
        span = f"{(int(trace.span, 16) + number) % (1 << 64):016x}"
        taken = round(seconds, 6)
        log_event("span", level=DEBUG, trace=trace.trace, span=span, parent=trace.span, stage=stage, seconds=taken)
