"""Which trace a client's requests belong to (W3C trace context): that of the block around, if there is one."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from tmmu.errors import InvalidConfig
from tmmu.wire.trace_context import continue_trace

_CURRENT: Final[ContextVar[str | None]] = ContextVar("tmmu_request_trace", default=None)


@contextmanager
def request_trace(traceparent: str | None = None) -> Iterator[str]:
    """Block whose requests, of this thread or task, are spans of one trace: that of ``traceparent``, or a new one.

    It is given the ``traceparent`` of the span above them. ``INVALID_CONFIG`` for a text that is none.
    """
    above = continue_trace(traceparent if isinstance(traceparent, str) else None)
    if traceparent is not None and not above.parent:
        raise InvalidConfig(
            f"{traceparent!r:.80} is no traceparent", fix="write 00-TRACE-SPAN-FLAGS, as W3C's trace context has it"
        )
    text = above.traceparent if traceparent is None else traceparent.strip().lower()
    token = _CURRENT.set(text)
    try:
        yield text
    finally:
        _CURRENT.reset(token)


def next_traceparent() -> str:
    """That of a request which is sent now: a new span; nothing outside of a block, where nobody knows the trace."""
    current = _CURRENT.get()
    return "" if current is None else continue_trace(current).traceparent
