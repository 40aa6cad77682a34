"""The wire format, against protobuf's own classes."""

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import DebugAnnotation, TrackEvent

from tmmu.export.protobuf import bytes_field, double_field, text_field, uint_field, varint

NUMBERS = (0, 1, 127, 128, 300, (1 << 32) - 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


@pytest.mark.parametrize("number", NUMBERS)
def test_number_is_what_protobuf_writes(number: int) -> None:
    assert uint_field(3, number) == DebugAnnotation(uint_value=number).SerializeToString()


@pytest.mark.parametrize("text", ["", "name", "\x00\u202e𝄞", "x" * 10_000])
def test_text_is_what_protobuf_writes(text: str) -> None:
    assert text_field(10, text) == DebugAnnotation(name=text).SerializeToString()


def test_double_is_what_protobuf_writes() -> None:
    assert double_field(44, 2.0**63) == TrackEvent(double_counter_value=2.0**63).SerializeToString()


def test_message_in_a_message_is_what_protobuf_writes() -> None:
    inner = TrackEvent(debug_annotations=[DebugAnnotation(name="a", uint_value=1)])
    assert bytes_field(4, uint_field(3, 1) + text_field(10, "a")) == inner.SerializeToString()


@pytest.mark.parametrize("number", [-1, 1 << 64])
def test_number_outside_64_bits_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        varint(number)
