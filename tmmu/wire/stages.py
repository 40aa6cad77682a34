"""Stages of a request: where it is, and how long it was in each. What they took adds up to its wall time.

One clock, and one mark for each change: a stage begins where the one before ends, so that nothing is lost or counted
twice. While texts are generated each has a timeline of its own, a branch of the request's; the request goes on with
that of the text that ended last. What a server's stages took goes back with the answer, in microseconds.
"""

from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from time import monotonic
from typing import Final, Literal, TypeAlias

ServerStage: TypeAlias = Literal["network", "serialize", "queue", "lookup", "execute", "result"]
Stage: TypeAlias = Literal["capture", "build", ServerStage]
SERVER_STAGES: Final[tuple[ServerStage, ...]] = ("network", "serialize", "queue", "lookup", "execute", "result")
"""Reading and sending; decoding a body and its texts; waiting for steps; planning a step; running it; choosing tokens
and making the answer of them."""
STAGES: Final[tuple[Stage, ...]] = ("capture", "build", "serialize", "network", "queue", "lookup", "execute", "result")
"""Those of a client, in the order in which a request is in them: recording calls, making a graph of them, encoding, and
what the server says. ``network`` is what of its wall time is nobody else's."""


class StageTimeline:
    """Begins in ``network``. For any thread: a step of a text may end while the text does."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock, self._lock = clock, RLock()
        self._begin = self._mark = clock()
        self.stage: ServerStage = "network"
        self._seconds: dict[ServerStage, float] = {}

    def enter(self, stage: ServerStage) -> None:
        """From now on it is in this stage."""
        with self._lock:
            now = self._clock()
            self._seconds[self.stage] = self._seconds.get(self.stage, 0.0) + now - self._mark
            self.stage, self._mark = stage, now

    def move(self, source: ServerStage, target: ServerStage, seconds: float) -> None:
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
    def seconds(self) -> Mapping[ServerStage, float]:
        """What each stage has taken up to the last mark, in the order of stages."""
        return {stage: self._seconds[stage] for stage in SERVER_STAGES if stage in self._seconds}


def encode_stages(seconds: Mapping[ServerStage, float]) -> list[int]:
    """Microseconds of each stage of a server, in their order."""
    return [int(seconds.get(stage, 0.0) * 1e6) for stage in SERVER_STAGES]


def decode_stages(microseconds: Sequence[int]) -> dict[ServerStage, float]:
    """Seconds of each stage that a server told; of none where it told none."""
    return {stage: each / 1e6 for stage, each in zip(SERVER_STAGES, microseconds, strict=False)}
