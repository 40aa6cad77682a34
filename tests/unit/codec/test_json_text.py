"""JSON of strangers: refused where it is deep, or has more items than its bytes can mean."""

import contextlib
import json
import tracemalloc
from collections.abc import Callable

import pytest

from tmmu.codec.json_text import DEPTH_MAX, decode_json
from tmmu.errors import PlanCorrupt

MEBIBYTE = 1 << 20

COSTLY: dict[str, Callable[[int], bytes]] = {
    "empty maps": lambda size: b"[" + b"{}," * (size // 3) + b"0]",
    "small maps": lambda size: b"[" + b'{"":0},' * (size // 7) + b"0]",
    "empty arrays": lambda size: b"[" + b"[]," * (size // 3) + b"0]",
    "numbers": lambda size: b"[" + b"999," * (size // 4) + b"0]",
    "floats": lambda size: b"[" + b".5,".rjust(4, b"0") * (size // 4) + b"0]",
    "keys": lambda size: json.dumps({str(n): 0 for n in range(size // 10)}).encode(),
    "texts": lambda size: b"[" + '"\u20ac",'.encode() * (size // 6) + b"0]",
}


@pytest.mark.parametrize("size", [MEBIBYTE, pytest.param(8 * MEBIBYTE, marks=pytest.mark.slow)])
@pytest.mark.parametrize("make", COSTLY.values(), ids=COSTLY.keys())
def test_text_of_many_items_takes_at_most_16_times_its_bytes_and_64_mebibytes(
    make: Callable[[int], bytes], size: int
) -> None:
    text = make(size)
    tracemalloc.start()
    with contextlib.suppress(PlanCorrupt):
        decode_json(text, members=dict)
    peak = tracemalloc.get_traced_memory()[1] + len(text)
    tracemalloc.stop()
    assert peak <= 16 * len(text) + 64 * MEBIBYTE


@pytest.mark.parametrize("mark", [b"[", b'{"a":'])
def test_deep_text_is_refused_and_brackets_in_strings_do_not_count(mark: bytes) -> None:
    with pytest.raises(PlanCorrupt, match="deeper"):
        decode_json(mark * (DEPTH_MAX + 1))
    text = json.dumps(["[{" * 100, '"' + "[" * 100, "\\"])
    assert decode_json(text.encode()) == json.loads(text)


@pytest.mark.parametrize("text", [b"", b"{", b'"abc', b"\xff", b'"\\', b"[1,]", b"9" * 5000])
def test_broken_text_is_refused_in_one_line(text: bytes) -> None:
    with pytest.raises(PlanCorrupt, match="no JSON"):
        decode_json(text)
