"""W3C trace context: its own examples, and what is none."""

import re

import pytest

from tmmu.wire.trace_context import continue_trace

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize("header", [f"00-{TRACE}-{SPAN}-01", f" 00-{TRACE}-{SPAN}-01 ", f"cc-{TRACE}-{SPAN}-01-later"])
def test_trace_goes_on_in_a_span_of_its_own(header: str) -> None:
    context = continue_trace(header)
    assert (context.trace, context.parent, context.flags) == (TRACE, SPAN, "01")
    assert context.span != SPAN
    assert context.traceparent == f"00-{TRACE}-{context.span}-01"


@pytest.mark.parametrize(
    "header",
    [None, "", "00", f"ff-{TRACE}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01",
     f"00-{TRACE}-{SPAN}-01-more", f"00-{TRACE[:-1]}g-{SPAN}-01", f"00-{TRACE}-{SPAN}"],
)  # fmt: skip
def test_what_is_no_trace_begins_one(header: str | None) -> None:
    contexts = [continue_trace(header) for _ in range(2)]
    assert all(re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-00", context.traceparent) for context in contexts)
    assert contexts[0].trace != contexts[1].trace
    assert contexts[0].parent == ""
