"""W3C trace context: which trace a request belongs to."""

import re
from dataclasses import dataclass
from secrets import token_hex
from typing import Final

_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceContext:
    """A span of a trace: ``trace`` 32 and ``span`` 16 hexadecimal digits; ``parent``: the client's span, or nothing."""

    trace: str
    span: str
    parent: str
    flags: str

    @property
    def traceparent(self) -> str:
        """The header that names this span."""
        return f"00-{self.trace}-{self.span}-{self.flags}"


def continue_trace(traceparent: str | None) -> TraceContext:
    """A new span of the trace that a header names; of a new trace, where there is none that can be read."""
    match = _TRACEPARENT.fullmatch((traceparent or "").strip().lower())
    readable = (
        match is not None
        and match[1] != "ff"
        and not (match[1] == "00" and match[5])
        and match[2].strip("0")
        and match[3].strip("0")
    )
    if match is None or not readable:
        return TraceContext(trace=token_hex(16), span=token_hex(8), parent="", flags="00")
    return TraceContext(trace=match[2], span=token_hex(8), parent=match[3], flags=match[4])
