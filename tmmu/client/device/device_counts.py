"""What a remote device has done, in numbers, and how long that took here."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Final, Literal, TypeAlias

from tmmu.client.device.operator_classes import OperatorClass
from tmmu.client.request_trace import RequestSpan

ClientStage: TypeAlias = Literal["capture", "build", "request", "result"]
CLIENT_STAGES: Final[tuple[ClientStage, ...]] = ("capture", "build", "request", "result")
"""Recording calls; making a graph of them; waiting for the server; making tensors of what came."""


class StageSeconds:
    """Seconds of each stage so far. At any moment it is in one, the innermost, or in none: so what a call takes is what
    its stages take. Whoever calls it has the recorder's lock.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.clock = clock
        self.seconds: dict[ClientStage, float] = dict.fromkeys(CLIENT_STAGES, 0.0)
        self._stage: ClientStage | None = None
        self._mark = 0.0
        self._before: dict[ClientStage, float] = {}
        """Seconds of what came before the next request, and is part of it."""
        self._span: RequestSpan | None = None
        """Of the last request, while a tensor is made of what came."""

    @contextmanager
    def within(self, stage: ClientStage) -> Iterator[None]:
        """Block that is this stage, but for the blocks in it."""
        above = self._enter(stage)
        try:
            yield
        finally:
            self._enter(above)

    def _enter(self, stage: ClientStage | None) -> ClientStage | None:
        """The stage from now on; returns the one before."""
        now, before = self.clock(), self._stage
        if before is not None:
            self.seconds[before] += now - self._mark
            self._note(before, now - self._mark, is_behind=self._span is not None and stage != "request")
        self._stage, self._mark = stage, now
        if stage is None:
            self._span = None  # what comes of it is done: a later look at what is here is no part of it
        return before

    def _note(self, stage: ClientStage, seconds: float, *, is_behind: bool) -> None:
        """Tells the last request what comes of it, or keeps it for the next one, which a recorded call is always of."""
        if stage == "request":
            return
        if is_behind and self._span is not None and stage != "capture":
            self._span.add(stage, seconds)
            return
        self._span = None
        self._before[stage] = self._before.get(stage, 0.0) + seconds

    def note_request(self, span: RequestSpan | None) -> None:
        """A request is over: what came before it is told to its span, if it is of a trace, and what comes of it."""
        before, self._before, self._span = self._before, {}, span
        if span is not None:
            for stage in ("capture", "build", "result"):
                span.add(stage, before.get(stage, 0.0))


@dataclass(slots=True)
class DeviceCounts:
    """``requests``: round trips of any kind. ``looks``: values that were asked for, ``cached`` of them known here.

    ``calls`` recorded, by class; ``views`` are none. ``equal``: calls that were not recorded, since an equal one was.
    ``runs`` of graphs, of which ``planned`` inside a plan. ``uploaded``, ``fetched``: bytes of values; ``reused``:
    bytes that were there and did not travel. ``moved``: calls for which a local operand was uploaded;
    ``materialized``: those that ran here, on fetched ones. ``stages``: how long all that took.
    """

    requests: int = 0
    looks: int = 0
    cached: int = 0
    calls: Counter[OperatorClass] = field(default_factory=Counter)
    views: int = 0
    equal: int = 0
    runs: int = 0
    planned: int = 0
    uploaded: int = 0
    fetched: int = 0
    reused: int = 0
    moved: int = 0
    materialized: int = 0
    stages: StageSeconds = field(default_factory=StageSeconds, repr=False)

    @property
    def seconds(self) -> dict[ClientStage, float]:
        """Seconds of each stage."""
        return dict(self.stages.seconds)
