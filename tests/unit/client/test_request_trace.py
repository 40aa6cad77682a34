"""Blocks of one trace: what each request in them is named, and what names no trace."""

from typing import Any

import pytest

from tmmu.client.request_trace import next_traceparent, request_trace
from tmmu.errors import InvalidConfig

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_requests_of_a_block_are_spans_of_its_trace() -> None:
    assert next_traceparent() == ""
    with request_trace(f" 00-{TRACE.upper()}-{SPAN}-01") as above:
        assert above == f"00-{TRACE}-{SPAN}-01"
        names = [next_traceparent() for _ in range(2)]
        with request_trace() as own:
            assert next_traceparent().split("-")[1] == own.split("-")[1] != TRACE
        names.append(next_traceparent())
    assert next_traceparent() == ""
    assert len({SPAN, *(name.split("-")[2] for name in names)}) == 4
    assert {name.split("-")[1] for name in names} == {TRACE}


@pytest.mark.parametrize("traceparent", ["", "00-abc", 7, f"00-{TRACE}-{SPAN}-01".encode()])
def test_what_names_no_trace_is_refused(traceparent: Any) -> None:
    with pytest.raises(InvalidConfig, match="no traceparent"), request_trace(traceparent):
        pass
