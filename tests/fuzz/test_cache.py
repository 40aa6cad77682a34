"""Arbitrary bytes in a cache folder give a stored plan or a reason for a miss. Each test takes about a second."""

import random
from pathlib import Path

from blake3 import blake3

from tests.strategies import random_graph, seeded
from tests.unit.cache.cached import TOKEN, CountingMaker, key, program
from tmmu.cache import MissReason, PlanCache, store
from tmmu.cache.entry import HEADER_BYTES, EntryRefused, decode_entry, encode_entry, open_entry
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan
from tmmu.judge.check import check_plan
from tmmu.planner.arenas import parse_arenas
from tmmu.planner.prepare import prepare_memory

SMALL = encode_entry(key(), *program())


def large() -> tuple[Graph, Plan]:
    graph = random_graph(seeded(5), ops=500)
    return graph, prepare_memory(graph, mode="inference", preset="inference", token=TOKEN, arenas=parse_arenas(()))


def serve_or_refuse(data: bytes) -> tuple[Graph, Plan] | MissReason:
    """Graph and plan of an entry's bytes, or why they are refused; any other exception fails the test."""
    try:
        return open_entry(decode_entry(data))
    except EntryRefused as error:
        return error.miss.reason


def seal_body(body: bytes) -> bytes:
    """An entry file of this body under the right length and digest."""
    start = SMALL[:13] + len(body).to_bytes(8, "little")
    return start + blake3(start + body).digest() + body


def damage_bytes(chance: random.Random, data: bytes) -> bytes:
    """The bytes with 1 to 4 pieces flipped, cut out, doubled or inserted."""
    broken = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        position, length = chance.randrange(len(broken) + 1), chance.randint(0, 9)
        piece = {
            0: bytes(byte ^ 1 << chance.randrange(8) for byte in broken[position : position + length]),
            1: b"",
            2: bytes(broken[position : position + length]) * 2,
            3: chance.randbytes(length),
        }[chance.randrange(4)]
        broken[position : position + length] = piece
    return bytes(broken)


def test_flipped_bit_of_a_large_entry_is_refused() -> None:
    data = encode_entry(key(), *large())
    assert len(data) > 50_000
    chance = random.Random(1)
    for _ in range(3000):
        bit = chance.randrange(8 * len(data))
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        assert isinstance(serve_or_refuse(bytes(broken)), MissReason), f"bit {bit}"


def test_damage_of_any_kind_is_refused() -> None:
    chance = random.Random(2)
    for _ in range(3000):
        data = damage_bytes(chance, SMALL)
        assert data == SMALL or isinstance(serve_or_refuse(data), MissReason)


def test_random_bytes_are_refused() -> None:
    chance = random.Random(3)
    for _ in range(3000):
        data = chance.randbytes(chance.randrange(200))
        assert isinstance(serve_or_refuse(data), MissReason)
        assert isinstance(serve_or_refuse(SMALL[:13] + data), MissReason)
        assert isinstance(serve_or_refuse(seal_body(data)), MissReason)


def test_damage_under_a_right_digest_gives_well_formed_plans_or_none() -> None:
    """Whoever can compute digests can write other plans: what is read can be judged, and no reader breaks."""
    chance, judged = random.Random(4), 0
    for _ in range(2000):
        answer = serve_or_refuse(seal_body(damage_bytes(chance, SMALL[HEADER_BYTES:])))
        if not isinstance(answer, MissReason):
            check_plan(*answer)
            judged += 1
    assert judged < 2000


def test_folder_full_of_damaged_files_is_a_cache(tmp_path: Path) -> None:
    chance = random.Random(5)
    for number in range(60):
        path = store.entry_path(tmp_path, key(number))
        path.write_bytes(damage_bytes(chance, SMALL) if number % 2 else chance.randbytes(100))
    make = CountingMaker()
    cache = PlanCache(tmp_path, reverify=True)
    assert {cache.get_or_make(key(number), make).origin for number in range(60)} == {"cold"}
    assert {PlanCache(tmp_path).get_or_make(key(number), make).origin for number in range(60)} == {"disk"}
    assert make.calls == 60
