"""One value, one spelling; what is not in our subset is refused before anything decodes it."""

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmmu.errors import PlanCorrupt
from tmmu.ir.encoding import cbor

scalars = st.integers(-(2**64), 2**64 - 1) | st.text(max_size=40) | st.binary(max_size=300) | st.booleans() | st.none()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=30) | st.dictionaries(st.text(max_size=9), inner, max_size=30)
)


@given(values)
def test_values_survive_encoding_and_decoding(value: object) -> None:
    assert cbor.decode(cbor.encode(value)) == value


@pytest.mark.parametrize("length", [0, 23, 24, 255, 256, 65535, 65536])
def test_strings_with_heads_of_every_length_are_decoded(length: int) -> None:
    assert cbor.decode(cbor.encode(["x" * length, b"y" * length, 1])) == ["x" * length, b"y" * length, 1]


def test_keys_are_sorted_and_heads_shortest() -> None:
    assert cbor.encode({"b": 1, "a": 24, "aa": 0}).hex() == "a36161181861620162616100"


REFUSED = {
    "nothing": b"",
    "trailing bytes": b"\x00\x00",
    "cut off in a head": b"\x19\x01",
    "cut off in text": b"\x62a",
    "cut off in long text": b"\x78\x1eabc",
    "cut off in an array": b"\x82\x01",
    "an integer too long": b"\x18\x17",
    "a length too long": b"\x78\x01a",
    "keys out of order": b"\xa2\x61b\x00\x61a\x00",
    "a key twice": b"\xa2\x61a\x00\x61a\x00",
    "an indefinite array": b"\x9f\x01\xff",
    "an indefinite map": b"\xbf\x61a\x01\xff",
    "indefinite text": b"\x7f\x61a\xff",
    "indefinite bytes": b"\x5f\x41a\xff",
    "a half float": b"\xf9\x3c\x00",
    "a double": b"\xfb" + bytes(8),
    "undefined": b"\xf7",
    "a simple value": b"\xf8\x20",
    "a break": b"\xff",
    "a reserved head": b"\x1c",
    "no text": b"\x62\xff\xfe",
    "a date": b"\xc0\x74" + b"2013-03-21T20:04:00Z",
    "a bignum": b"\xc2\x49\x01" + bytes(8),
    "a regular expression": b"\xd8\x23\x62a+",
    "a fraction": b"\xd8\x1e\x82\x01\x02",
    "a big float": b"\xc5\x82\x1b" + b"\x0f" * 8 + b"\x01",
    "our own mark": b"\xd9\xd9\xf7\x00",
    "an array of 2**60": b"\x9b" + b"\x0f" * 8,
    "a map of 2**60": b"\xbb" + b"\x0f" * 8,
    "text of 2**60": b"\x7b" + b"\x0f" * 8,
    "bytes of 2**30": b"\x5a\x40\x00\x00\x00",
    "a deep nest": b"\x81" * 100_000 + b"\x00",
    "deep maps": b"\xa1\x60" * 100_000 + b"\x00",
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED.keys())
def test_bytes_outside_of_the_subset_are_refused(data: bytes) -> None:
    with pytest.raises(PlanCorrupt):
        cbor.decode(data)


def test_shared_references_never_unfold() -> None:
    """Each level holds the one before twice: 40 levels are 200 bytes, and a million million items."""
    bomb = b"\xd8\x1c\x80"
    for level in range(40):
        bomb = b"\xd8\x1c\x82" + bomb + b"\xd8\x1d" + cbor2.dumps(level)
    with pytest.raises(PlanCorrupt, match="a tag"):
        cbor.decode(bomb)


def test_repeated_strings_never_unfold() -> None:
    """One long string and references to it: each two bytes stand for a million."""
    bomb = b"\xd9\x01\x00\x9a\x00\x01\x86\xa1\x7a\x00\x0f\x42\x40" + b"a" * 1_000_000 + b"\xd8\x19\x00" * 100_000
    with pytest.raises(PlanCorrupt, match="a tag"):
        cbor.decode(bomb)


def test_refusal_names_the_byte() -> None:
    with pytest.raises(PlanCorrupt, match="a float at byte 3") as caught:
        cbor.decode(b"\x82\x18\x20\xfb" + bytes(8))
    assert caught.value.fields["byte"] == 3
