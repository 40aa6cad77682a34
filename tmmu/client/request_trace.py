"""Which trace a client's requests belong to (W3C trace context), and where the time of each went."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Lock
from time import monotonic
from typing import Final

from tmmu.errors import InvalidConfig
from tmmu.wire.interface import RequestHeader
from tmmu.wire.stages import SERVER_STAGES, STAGES, Stage, decode_stages
from tmmu.wire.trace_context import continue_trace

MOST_REQUESTS: Final = 4096
"""Of one trace, of which it knows the stages; older ones are forgotten."""
_ENDING: Final = Lock()


@dataclass(slots=True, kw_only=True)
class RequestSpan:
    """One request of a trace. ``request``: its type; ``traceparent`` names it, and is the parent of the server's span.

    ``code``: of what it failed of, or nothing. ``seconds``: all that it took, once it is over; ``stages`` has what of
    that was where, and adds up to it. What a server did not tell, as of a request that failed, is ``network``.
    """

    request: str
    traceparent: str
    code: str = ""
    seconds: float = 0.0
    is_over: bool = False
    _taken: dict[Stage, float] = field(default_factory=dict, repr=False)
    _began: float = field(default_factory=monotonic, repr=False)

    @property
    def stages(self) -> Mapping[Stage, float]:
        """Seconds of each stage that took any, in the order of stages."""
        return {stage: self._taken[stage] for stage in STAGES if stage in self._taken}

    def note_encoded(self) -> None:
        """From here on it is on its way."""
        self.add("serialize", monotonic() - self._began)

    def end(self, microseconds: Sequence[int], code: str = "") -> None:
        """It is over; ``microseconds``: what the server told of its own stages. Nothing where it was: who waits may
        give it up while another thread takes its answer.
        """
        with _ENDING:
            if self.is_over:
                return
            wall = monotonic() - self._began
            told = decode_stages(microseconds)
            for stage in SERVER_STAGES[1:]:  # what the server calls network is part of what that is here
                if told.get(stage):
                    self._taken[stage] = self._taken.get(stage, 0.0) + told[stage]
            self._taken["network"] = max(wall - sum(self._taken.values()), 0.0)
            self.seconds, self.code, self.is_over = sum(self._taken.values()), code, True

    def add(self, stage: Stage, seconds: float) -> None:
        """So much more of a stage, before it or behind its end."""
        self._taken[stage] = self._taken.get(stage, 0.0) + seconds
        self.seconds += seconds


class RequestTrace:
    """A trace, and its requests in the order in which they began. ``traceparent``: of the span above them."""

    def __init__(self, traceparent: str) -> None:
        self.traceparent = traceparent
        self.requests: deque[RequestSpan] = deque(maxlen=MOST_REQUESTS)

    def begin(self, header: RequestHeader) -> RequestSpan:
        """A request of this thread begins."""
        tag = str(type(header).__struct_config__.tag)
        span = RequestSpan(request=tag, traceparent=continue_trace(self.traceparent).traceparent)
        self.requests.append(span)
        _NEWEST.set(span)
        return span

    def __repr__(self) -> str:
        return f"<RequestTrace {self.traceparent}, {len(self.requests)} requests>"


_CURRENT: Final[ContextVar[RequestTrace | None]] = ContextVar("tmmu_request_trace", default=None)
_NEWEST: Final[ContextVar[RequestSpan | None]] = ContextVar("tmmu_newest_request", default=None)


@contextmanager
def request_trace(traceparent: str | None = None) -> Iterator[RequestTrace]:
    """Block whose requests, of this thread or task, are spans of one trace: that of ``traceparent``, or a new one.

    ``INVALID_CONFIG`` for a text that is none.
    """
    above = continue_trace(traceparent if isinstance(traceparent, str) else None)
    if traceparent is not None and not above.parent:
        raise InvalidConfig(
            f"{traceparent!r:.80} is no traceparent", fix="write 00-TRACE-SPAN-FLAGS, as W3C's trace context has it"
        )
    trace = RequestTrace(above.traceparent if traceparent is None else traceparent.strip().lower())
    token = _CURRENT.set(trace)
    try:
        yield trace
    finally:
        _CURRENT.reset(token)


def begin_span(header: RequestHeader) -> RequestSpan | None:
    """The span of a request which begins now; none outside of a block, where nobody knows the trace."""
    trace = _CURRENT.get()
    return None if trace is None else trace.begin(header)


def newest_span() -> RequestSpan | None:
    """That of the last request of this thread, inside of a block."""
    return None if _CURRENT.get() is None else _NEWEST.get()
