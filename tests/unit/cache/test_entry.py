from collections.abc import Callable
from dataclasses import replace

import pytest
from blake3 import blake3

from tests.unit.cache.cached import key, program
from tests.unit.ir.samples import fitted, graph, plan
from tmmu.cache.entry import HEADER_BYTES, EntryRefused, decode_entry, encode_entry, open_entry
from tmmu.cache.miss import MissReason
from tmmu.ir.encoding import cbor
from tmmu.ir.graph import encode_graph
from tmmu.ir.plan import encode_plan

DATA = encode_entry(key(), *program())


def sealed(body: object) -> bytes:
    """An entry file of this body under the right digest, as a forger could write it."""
    data = body if isinstance(body, bytes) else cbor.encode(body)
    start = DATA[:13] + len(data).to_bytes(8, "little")
    return start + blake3(start + data).digest() + data


def reason(data: bytes) -> MissReason:
    with pytest.raises(EntryRefused) as caught:
        open_entry(decode_entry(data))
    return caught.value.miss.reason


def test_entry_round_trips() -> None:
    entry = decode_entry(DATA)
    assert entry.key == key()
    assert open_entry(entry) == program()


def test_plan_of_a_rewritten_graph_round_trips() -> None:
    planned = fitted(plan())
    assert open_entry(decode_entry(encode_entry(key(), graph(), planned))) == (graph(), planned)


def test_text_of_a_part_round_trips() -> None:
    assert decode_entry(DATA).key.parts[0].text == "0"


def test_entry_bytes_are_deterministic() -> None:
    assert encode_entry(key(), *program()) == DATA


def test_flipped_bit_is_refused() -> None:
    for bit in range(8 * len(DATA)):
        broken = bytearray(DATA)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(EntryRefused):
            decode_entry(bytes(broken))


def test_truncation_anywhere_is_refused() -> None:
    assert {reason(DATA[:length]) for length in range(len(DATA))} == {MissReason.CUT_OFF}


def test_trailing_byte_is_refused() -> None:
    assert reason(DATA + b"\0") is MissReason.DAMAGED


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"not ours at all, but long enough to have a head and a digest and more", MissReason.FOREIGN),
        (encode_plan(program()[1]), MissReason.FOREIGN),
        (DATA.replace(b"tmmu.cache 1\n", b"tmmu.cache 2\n", 1), MissReason.VERSION),
        (DATA.replace(b"tmmu.cache 1\n", b"tmmu.cache 0\n", 1), MissReason.VERSION),
        (DATA[:HEADER_BYTES] + DATA[HEADER_BYTES:][::-1], MissReason.DAMAGED),
    ],
)
def test_header_tells_foreign_files_and_versions(data: bytes, expected: MissReason) -> None:
    assert reason(data) is expected


def body(change: Callable[[dict[str, object]], object]) -> bytes:
    graph, plan = program()
    whole: dict[str, object] = {"key": [["a", bytes(32), ""]], "graph": encode_graph(graph), "plan": encode_plan(plan)}
    change(whole)
    return sealed(whole)


def test_sealed_body_that_is_right_is_an_entry() -> None:
    assert decode_entry(body(lambda whole: None)).key.parts[0].name == "a"


@pytest.mark.parametrize(
    "data",
    [
        sealed(b""),
        sealed(b"\xff"),
        sealed(b"\xa1\x61a\x18\x01"),  # 1 in two bytes: not canonical
        sealed([]),
        body(lambda whole: whole.pop("graph")),
        body(lambda whole: whole.update(more=1)),
        body(lambda whole: whole.update(graph="text")),
        body(lambda whole: whole.update(plan=b"")),
        body(lambda whole: whole.update(graph=whole["plan"])),
        body(lambda whole: whole.update(key={})),
        body(lambda whole: whole.update(key=[["a", bytes(32)]])),
        body(lambda whole: whole.update(key=[["a", bytes(31), ""]])),
        body(lambda whole: whole.update(key=[[1, bytes(32), ""]])),
        body(lambda whole: whole.update(key=[["b", bytes(32), ""], ["a", bytes(32), ""]])),
        body(lambda whole: whole.update(key=[["a", bytes(32), ""], ["a", bytes(32), ""]])),
    ],
)
def test_malformed_body_under_a_right_digest_is_refused(data: bytes) -> None:
    assert reason(data) is MissReason.DAMAGED


def test_plan_of_another_graph_is_refused() -> None:
    graph, plan = program()
    foreign_plan = encode_plan(plan).replace(plan.ir_hash, bytes(32))
    assert reason(body(lambda whole: whole.update(plan=foreign_plan))) is MissReason.DAMAGED
    moved = replace(plan, ir_hash=bytes(32))
    assert reason(encode_entry(key(), graph, moved)) is MissReason.DAMAGED
