"""Texts of calls: one call, one text; every argument comes back as it was; what is no call is none."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmmu.ir.call_text import (
    CallText,
    decode_call,
    decode_float,
    decode_number,
    encode_call,
    encode_float,
    encode_number,
)
from tmmu.ir.encoding import cbor

FLOATS = st.floats(allow_nan=True).map(encode_float)
PLAIN = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.text(max_size=8),
    FLOATS,
    st.sampled_from([[], ["default"], ["number"], ["dtype", "float32"], ["device", "cuda:0"], ["opaque", "Generator"]]),
    st.integers(0, 3).map(lambda bits: ["tensor", bits]),
    st.tuples(FLOATS, FLOATS).map(lambda parts: ["complex", *parts]),
)
ARGUMENTS = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3).map(lambda items: ["list", *items]), max_leaves=6
)


@given(st.lists(ARGUMENTS, max_size=4), st.lists(st.booleans(), max_size=3))
def test_calls_come_back(arguments: list[object], results: list[bool]) -> None:
    call = CallText(operator="aten.op.default", arguments=tuple(arguments), results=tuple(results))  # type: ignore[arg-type]
    assert decode_call(encode_call(call)) == call


@given(st.lists(st.tuples(st.text(min_size=1, max_size=8), ARGUMENTS), min_size=1, max_size=3))
def test_switches_come_back(switches: list[tuple[str, object]]) -> None:
    call = CallText(operator="aten.op.default", arguments=(), results=(True,), switches=tuple(switches))  # type: ignore[arg-type]
    assert decode_call(encode_call(call)) == call


def test_places_are_tensors_of_arguments_and_results() -> None:
    nested = ["list", ["tensor", 0], ["list", ["tensor", 3]], ["number"], "tensor"]
    call = CallText(operator="f", arguments=(["tensor", 1], nested, ["number"]), results=(True, False, True))  # type: ignore[arg-type]
    assert (call.places, call.numbers) == (5, 2)


@pytest.mark.parametrize(
    "value",
    [
        ["f", []],
        ["f", [], [1]],
        ["f", [], [], []],
        ["f", [], [], [["switch"]]],
        ["f", [], [], [[3, True]]],
        ["f", [], [], [["switch", {"a": 1}]]],
        ["f", [], [], [["switch", True]], []],
        [1, [], []],
        ["f", [["tensor", 4]], []],
        ["f", [["tensor", True]], []],
        ["f", [["tensor"]], []],
        ["f", [["spell", "x"]], []],
        ["f", [b"short"], []],
        ["f", [["complex", b"12345678"]], []],
        ["f", [["dtype", 3]], []],
        ["f", [None], []],
        ["f", [{"a": 1}], []],
        "f",
    ],
)
def test_what_is_no_call_is_none(value: object) -> None:
    assert decode_call(cbor.encode(value)) is None


def test_deep_list_is_none() -> None:
    deep: list[object] = []
    for _ in range(40):
        deep = ["list", deep]
    assert decode_call(cbor.encode(["f", [deep], []])) is None


@pytest.mark.parametrize("number", [0.1, -0.0, math.inf, 5e-324])
def test_floats_keep_their_bits(number: float) -> None:
    assert encode_float(decode_float(encode_float(number))) == encode_float(number)
    assert decode_number(encode_number(encode_float(number))) == encode_float(number)


@pytest.mark.parametrize("data", [b"", b"\x61a", b"\x80", b"\x18\x01", b"\x81\x66number", b"\xf6"])
def test_what_is_no_number_is_none(data: bytes) -> None:
    assert decode_number(data) is None
