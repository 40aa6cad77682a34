"""Blocks of one trace: what each request in them is named, where its time went, and what names no trace."""

from typing import Any

import pytest

from tmmu.client import request_trace as module
from tmmu.client.request_trace import MOST_REQUESTS, RequestSpan, begin_span, newest_span, request_trace
from tmmu.errors import InvalidConfig
from tmmu.wire.model_messages import ListModels

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def begin() -> RequestSpan:
    span = begin_span(ListModels())
    assert span is not None
    assert newest_span() is span
    return span


def test_requests_of_a_block_are_spans_of_its_trace() -> None:
    assert begin_span(ListModels()) is None
    with request_trace(f" 00-{TRACE.upper()}-{SPAN}-01") as above:
        assert above.traceparent == f"00-{TRACE}-{SPAN}-01"
        spans = [begin() for _ in range(2)]
        with request_trace() as own:
            inner = begin()
            assert inner.traceparent.split("-")[1] == own.traceparent.split("-")[1] != TRACE
        spans.append(begin())
        assert list(above.requests) == spans
        assert list(own.requests) == [inner]
    assert newest_span() is begin_span(ListModels()) is None
    assert len({SPAN, *(span.traceparent.split("-")[2] for span in spans)}) == 4
    assert {span.traceparent.split("-")[1] for span in spans} == {TRACE}
    assert {span.request for span in spans} == {"models.list"}


def test_stages_of_a_span_add_up_to_its_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(module, "monotonic", lambda: now)
    span = RequestSpan(request="x", traceparent="", _began=now)
    now += 2
    span.note_encoded()
    now += 8
    span.end([9_000_000, 500_000, 250_000, 0, 4_000_000, 125_000], "SERVER_BUSY")
    assert span.stages == {"serialize": 2.5, "network": 3.125, "queue": 0.25, "execute": 4.0, "result": 0.125}
    assert (span.seconds, span.code, span.is_over) == (10.0, "SERVER_BUSY", True)
    span.end([0, 0, 0, 0, 9_000_000, 0])
    assert (span.seconds, span.code) == (10.0, "SERVER_BUSY"), "it ends once"
    span.add("capture", 1.0)
    span.add("result", 2.0)
    assert list(span.stages) == ["capture", "serialize", "network", "queue", "execute", "result"]
    assert span.seconds == sum(span.stages.values()) == 13.0


def test_what_nothing_was_told_of_is_network(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(module, "monotonic", lambda: now)
    span = RequestSpan(request="x", traceparent="", _began=now)
    now += 3
    span.end(())
    assert span.stages == {"network": 3.0}
    liar = RequestSpan(request="x", traceparent="", _began=now)
    liar.end([0, 0, 0, 0, 7_000_000])
    assert liar.stages == {"network": 0.0, "execute": 7.0}, "no stage is negative, whatever a server tells"


def test_a_trace_forgets_its_oldest_requests() -> None:
    with request_trace() as trace:
        spans = [begin() for _ in range(MOST_REQUESTS + 2)]
    assert (len(trace.requests), trace.requests[0]) == (MOST_REQUESTS, spans[2])


@pytest.mark.parametrize("traceparent", ["", "00-abc", 7, f"00-{TRACE}-{SPAN}-01".encode()])
def test_what_names_no_trace_is_refused(traceparent: Any) -> None:
    with pytest.raises(InvalidConfig, match="no traceparent"), request_trace(traceparent):
        pass
