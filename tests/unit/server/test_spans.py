"""Spans in the log of a server: one for each stage, children of the request's."""

import logging

import pytest

from tmmu.server.spans import log_spans
from tmmu.wire.stages import ServerStage
from tmmu.wire.trace_context import TraceContext


def test_each_stage_has_a_span_that_is_a_child_of_the_request(caplog: pytest.LogCaptureFixture) -> None:
    trace = TraceContext(trace="a" * 32, span="f" * 16, parent="", flags="00")
    stages: dict[ServerStage, float] = {"queue": 0.25, "execute": 1.0}
    with caplog.at_level(logging.DEBUG, "tmmu.server"):
        logging.getLogger("tmmu.server").addHandler(caplog.handler)
        log_spans(trace, stages)
        logging.getLogger("tmmu.server").removeHandler(caplog.handler)
    spans = {record.__dict__["tmmu_fields"]["stage"]: record.__dict__["tmmu_fields"] for record in caplog.records}
    assert spans["queue"] == {
        "trace": "a" * 32,
        "span": "0" * 16,
        "parent": "f" * 16,
        "stage": "queue",
        "seconds": 0.25,
    }
    assert len({trace.span, *(fields["span"] for fields in spans.values())}) == 3
