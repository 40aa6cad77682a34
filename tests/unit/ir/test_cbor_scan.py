"""What CBOR of strangers may cost: refused while it is scanned, before objects exist."""

import tracemalloc
from collections.abc import Callable
from contextlib import suppress

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.ir.samples import graph
from tests.work import calls_of
from tmmu.codec.read import read_graph
from tmmu.errors import PlanCorrupt
from tmmu.ir.encoding import cbor
from tmmu.ir.encoding.cbor_scan import DEPTH_MAX, ENTRIES_MAX, scan
from tmmu.ir.graph import encode_graph

MEBIBYTE = 1 << 20


def nested_maps(depth: int) -> bytes:
    return b"\xa1\x60" * depth + b"\x00"


def array_of(item: bytes, size: int) -> bytes:
    count = size // len(item)
    head = b"\x9a" + count.to_bytes(4, "big") if count >> 16 else b"\x99" + count.to_bytes(2, "big")
    return head + item * count


COSTLY: dict[str, Callable[[int], bytes]] = {
    "empty arrays": lambda size: array_of(b"\x80", size),
    "arrays of one": lambda size: array_of(b"\x81\x00", size),
    "arrays of arrays": lambda size: array_of(b"\x81\x81\x80", size),
    "deep arrays": lambda size: array_of(b"\x81" * 60 + b"\x80", size),
    "empty maps": lambda size: array_of(b"\xa0", size),
    "small maps": lambda size: array_of(b"\xa1\x60\x00", size),
    "numbers of three bytes": lambda size: array_of(b"\x19\x01\x2c", size),
    "small numbers": lambda size: array_of(b"\x01", size),
    "negative numbers": lambda size: array_of(b"\x38\x64", size),
    "short texts": lambda size: array_of(b"\x62ab", size),
    "wide texts": lambda size: array_of(b"\x65a" + "\U0001f600".encode(), size),
    "mixed texts": lambda size: array_of(b"\x77" + b"a" * 19 + "\U0001f600".encode(), size),
    "byte strings": lambda size: array_of(b"\x42ab", size),
    "one long text": lambda size: b"\x7a" + (size - 4).to_bytes(4, "big") + b"a" * (size - 8) + "\U0001f600".encode(),
    "rows of numbers": lambda size: array_of(b"\x83\x19\x01\x2c\x00\x1a\x00\x01\x00\x00", size),
}


@pytest.mark.parametrize(
    ("size", "columns"),
    [
        pytest.param(MEBIBYTE, ("inputs",), marks=pytest.mark.slow),
        pytest.param(MEBIBYTE, ("outputs",), marks=pytest.mark.long),
        pytest.param(8 * MEBIBYTE, ("inputs", "outputs"), marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("make", COSTLY.values(), ids=COSTLY.keys())
def test_file_of_many_items_takes_at_most_16_times_its_bytes_and_64_mebibytes(
    make: Callable[[int], bytes], size: int, columns: tuple[str, ...]
) -> None:
    top = cbor.decode(encode_graph(graph()))
    assert isinstance(top, dict)
    for column in columns:
        data = cbor.encode(top | {column: "@@@@@@@@"}).replace(b"\x68@@@@@@@@", make(size))
        tracemalloc.start()
        try:
            with suppress(PlanCorrupt):
                read_graph(data)
            peak = tracemalloc.get_traced_memory()[1] + len(data)
        finally:
            tracemalloc.stop()
        assert peak <= 16 * len(data) + 64 * MEBIBYTE


@pytest.mark.parametrize("name", ["empty arrays", "small maps", "arrays of one"])
def test_items_beyond_the_budget_are_refused_before_they_exist(name: str) -> None:
    data = COSTLY[name](3 * MEBIBYTE)
    tracemalloc.start()
    try:
        with pytest.raises(PlanCorrupt, match=r"too many items|entries"):
            cbor.decode(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MEBIBYTE


def test_keys_that_hash_alike_are_refused_before_a_byte_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays as keys decode to tuples, which can be made to collide: 4 MB would take hours."""
    monkeypatch.setattr(cbor2, "loads", None)
    keys = [cbor2.dumps((0,) * n) for n in range(1, 2000)]
    data = b"\xb9\x07\xcf" + b"".join(key + b"\x00" for key in keys)
    with pytest.raises(PlanCorrupt, match="a key that is no short text"):
        cbor.decode(data)


REFUSED = {
    "a key that is a number": (b"\xa1\x01\x00", "no short text"),
    "a key that is an array": (b"\xa1\x80\x00", "no short text"),
    "a key that is bytes": (b"\xa1\x41a\x00", "no short text"),
    "a long key": (b"\xa1" + cbor2.dumps("k" * 1025) + b"\x00", "no short text"),
    "a key in an array that is a number": (b"\x81\xa1\x01\x00", "no short text"),
    "keys out of order": (b"\xa2\x61b\x00\x61a\x00", "out of order"),
    "a longer key first": (b"\xa2\x62aa\x00\x61b\x00", "out of order"),
    "keys out of order in an array": (b"\x81\xa2\x61b\x00\x61a\x00", "out of order"),
    "a key that is no UTF-8": (b"\xa1\x61\xff\x00", "UTF-8"),
    "deep maps": (nested_maps(DEPTH_MAX + 1), "deeper"),
    "deep arrays": (b"\x81" * (DEPTH_MAX + 2) + b"\x00", "deeper"),
    "more entries than a file has": (
        cbor2.dumps({f"{n:05}": 0 for n in range(ENTRIES_MAX + 1)}, canonical=True),
        "entries",
    ),
    "a length beyond the end": (b"\x9b\x00\x00\x00\x01\x00\x00\x00\x00" + bytes(99), "announced"),
    "a map beyond the end": (b"\xb9\xff\xff" + bytes(99), "announced"),
    "a number too long in an array": (b"\x82\x00\x18\x17", "longer than it must be"),
    "a number too long in a row": (b"\x82\x80\x81\x19\x00\xff", "longer than it must be"),
    "trailing bytes": (b"\x80\x00", "follow"),
}


@pytest.mark.parametrize(("data", "word"), REFUSED.values(), ids=REFUSED.keys())
def test_bytes_outside_of_the_subset_are_refused_by_name(data: bytes, word: str) -> None:
    with pytest.raises(PlanCorrupt, match=word):
        cbor.decode(data)


def test_announced_length_asks_for_no_memory() -> None:
    tracemalloc.start()
    with pytest.raises(PlanCorrupt):
        cbor.decode(b"\x9b\x00\x00\x00\x7f\xff\xff\xff\xff" + bytes(1000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 16


def test_deepest_nest_that_is_allowed_is_decoded() -> None:
    assert cbor.encode(cbor.decode(nested_maps(DEPTH_MAX))) == nested_maps(DEPTH_MAX)


def test_scan_makes_calls_linear_in_the_file() -> None:
    """Items that no pattern takes in runs are the slowest."""
    few, many = (array_of(b"\x38\x64", size) for size in (MEBIBYTE // 64, MEBIBYTE // 16))
    assert calls_of(lambda: scan(many)) < 5 * calls_of(lambda: scan(few))


small = st.binary(max_size=12) | st.lists(
    st.sampled_from(
        [
            *range(0x18),
            0x18,
            0x19,
            0x20,
            0x38,
            *range(0x40, 0x43),
            *range(0x60, 0x64),
            *range(0x80, 0x84),
            0xA0,
            0xA1,
            0xA2,
            0xF4,
            0xF5,
            0xF6,
            0xF7,
            0xFF,
        ]
    ),
    max_size=12,
).map(bytes)


@settings(max_examples=500, deadline=None)
@given(small)
def test_what_is_decoded_is_what_the_encoder_writes(data: bytes) -> None:
    try:
        value = cbor.decode(data)
    except PlanCorrupt:
        return
    assert cbor.encode(value) == data
    assert cbor2.loads(data) == value
