"""Spans of a request in the server's log: one for each stage that it was in."""

from collections.abc import Mapping
from logging import DEBUG

from tmmu.server.logs import log_event
from tmmu.wire.stages import ServerStage
from tmmu.wire.trace_context import TraceContext


def log_spans(trace: TraceContext, stages: Mapping[ServerStage, float]) -> None:
    """A span for each stage, at level ``debug``: children of the request's."""
    for number, (stage, seconds) in enumerate(stages.items(), 1):
        span = f"{(int(trace.span, 16) + number) % (1 << 64):016x}"
        taken = round(seconds, 6)
        log_event("span", level=DEBUG, trace=trace.trace, span=span, parent=trace.span, stage=stage, seconds=taken)
