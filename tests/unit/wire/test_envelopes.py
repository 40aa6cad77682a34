import msgspec
import pytest

from tests.unit.wire.sums import Add, Sums
from tmmu.errors import InternalError, InvalidRequest, RequestTooLarge, SegmentFull, WireBroken
from tmmu.wire.envelopes import (
    CLASSES,
    REQUEST,
    decode_body,
    decode_failure,
    encode_failure,
    encode_request,
    require_sizes,
)
from tmmu.wire.limits import INLINE_BYTES, WireLimits
from tmmu.wire.service_table import ServiceTable

LIMITS = WireLimits()


def body_of(header: object, payloads: list[bytes] = []) -> memoryview:  # noqa: B006
    parts = encode_request(header, [memoryview(each) for each in payloads], seconds=1.5, trace="t")  # type: ignore[arg-type]
    return memoryview(b"".join(parts))


def test_a_request_has_its_header_deadline_and_small_payloads() -> None:
    envelope, inline = decode_body(REQUEST, body_of(Add(numbers=(1,)), [b"ab", b"c"]), LIMITS)
    assert (envelope.sizes, envelope.deadline, envelope.trace) == ((2, 1), 1500, "t")
    assert bytes(inline) == b"abc"
    assert ServiceTable([Sums()]).decode(envelope.header) == Add(numbers=(1,))
    envelope, inline = decode_body(REQUEST, body_of(Add(), [bytes(INLINE_BYTES), b"a"]), LIMITS)
    assert envelope.sizes == (INLINE_BYTES, 1)
    assert not inline


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body[:-1],
        lambda body: body + b"x",
        lambda body: body[:3],
        lambda body: b"",
        lambda body: b"\xff\xff\xff\xff" + body[4:],
        lambda body: b"\x05\x00\x00\x00" + body[4:],
        lambda body: body[:4] + b"\xc1" + body[5:],
    ],
)
def test_a_body_that_is_none_breaks_the_connection(change: object) -> None:
    with pytest.raises(WireBroken):
        decode_body(REQUEST, memoryview(change(bytes(body_of(Add(), [b"abc"])))), LIMITS)  # type: ignore[operator]


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\x80",
        b"\x81\xa4type\xa7nothing",
        msgspec.msgpack.encode({"type": "sums.add", "more": 1}),
        msgspec.msgpack.encode({"type": "sums.add", "numbers": [0] * 9}),
        msgspec.msgpack.encode({"type": "sums.add", "numbers": ["a"]}),
        msgspec.msgpack.encode({"type": "sums.add"}) + b"x",
        b"\x91" * 1_000_000,
        b"\x82\xa4type\xa8sums.add\xa7numbers" + b"\x91" * 1_000_000,
        b"\x82\xa7numbers" + b"\x81\xa1a" * 300_000,
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xd9\xff\xa0",
    ],
)
def test_headers_of_other_types_sizes_and_depths_are_refused(header: bytes) -> None:
    with pytest.raises(InvalidRequest):
        ServiceTable([Sums()]).decode(header)


def test_sizes_have_limits() -> None:
    require_sizes([LIMITS.payload_bytes], LIMITS)
    for sizes in ([LIMITS.payload_bytes, 1], [0] * (LIMITS.payloads + 1)):
        with pytest.raises(RequestTooLarge):
            require_sizes(sizes, LIMITS)


def test_every_error_comes_back_as_it_was() -> None:
    for code, kind in CLASSES.items():
        error = kind("what", fix="do", bytes=7, names=["a", None, True])
        again = decode_failure(encode_failure(error))
        assert type(again) is kind
        assert (again.code, again.what, again.fix, dict(again.fields)) == (code, "what", "do", dict(error.fields))
    assert len(CLASSES) > 30


def test_a_code_of_another_version_is_internal_and_names_it() -> None:
    error = decode_failure(msgspec.msgpack.encode(["NEW_CODE", "what", "fix", {"self": 1, "message": 2, "fix": 3}]))
    assert type(error) is InternalError
    assert "NEW_CODE: what" in str(error)
    error = decode_failure(msgspec.msgpack.encode(["SEGMENT_FULL", "what", "fix", {"self": 1, "message": 2, "fix": 3}]))
    assert type(error) is SegmentFull
