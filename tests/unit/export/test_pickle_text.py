"""Pickles written by hand: Python reads back what was written, and finds nothing but plain values."""

import pickle
import pickletools

import pytest

from tmmu.export.pickle_text import Plain, encode_pickle

KNOWN_TO_THE_VIEWER = {
    "PROTO", "EMPTY_DICT", "EMPTY_LIST", "MARK", "SETITEMS", "APPENDS", "BINUNICODE", "BINPUT", "LONG_BINPUT",
    "BINGET", "LONG_BINGET", "BININT1", "LONG1", "NEWTRUE", "NEWFALSE", "STOP",
}  # fmt: skip
"""Opcodes that MemoryViz.js of PyTorch decodes, among others."""

VALUES: tuple[Plain, ...] = (
    {},
    [],
    {"a": 1, "b": [True, False, {"a": "a"}], "c": "c"},
    [0, 1, 255, 256, -1, -256, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, 1 << 63, 1 << 64, 1 << 200],
    [str(number) for number in range(300)] * 2,
    list(range(2500)),
    {"text": "\x00\u202e'\"\\\n𝄞" + "x" * 70000},
)


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_python_reads_back_what_was_written(value: Plain) -> None:
    assert pickle.loads(encode_pickle(value)) == value


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_opcodes_are_those_that_the_viewer_knows(value: Plain) -> None:
    opcodes = {opcode.name for opcode, _, _ in pickletools.genops(encode_pickle(value))}
    assert opcodes <= KNOWN_TO_THE_VIEWER


def test_truth_values_stay_what_they_are() -> None:
    assert [type(member) for member in pickle.loads(encode_pickle([True, 1, False, 0]))] == [bool, int, bool, int]


def test_each_text_is_written_once() -> None:
    assert encode_pickle(["name" * 10] * 1000).count(b"name" * 10) == 1


def test_bytes_depend_on_values_alone() -> None:
    joined = "".join(["na", "me"])
    assert encode_pickle(["name", joined]) == encode_pickle(["name", "name"])
