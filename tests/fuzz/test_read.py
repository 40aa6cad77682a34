"""Bytes in: a whole value or one clear refusal comes out. Each test takes about a second."""

import random
from collections.abc import Callable

import pytest

from tests.strategies import Builder
from tests.unit.ir.samples import TOKEN, arenas, fitted, fused, graph, plan
from tmmu.codec.read import read_graph, read_plan
from tmmu.errors import TmmuError
from tmmu.ir.graph import Graph, encode_graph
from tmmu.ir.plan import encode_plan
from tmmu.planner.prepare import prepare_memory

READERS = (read_graph, read_plan)
FILES = (encode_graph(graph()), encode_plan(plan()), encode_plan(fitted()), encode_plan(fused()))


def small() -> Graph:
    b = Builder()
    x, y = b.buffer("input"), b.buffer("activation")
    b.op([x], [y])
    return b.build([y])


def outcome(read: Callable[[bytes], object], data: bytes) -> str:
    """The code of the refusal, or nothing; any other exception is the test's failure."""
    try:
        read(data)
    except TmmuError as error:
        return error.code
    return ""


def is_refused(data: bytes) -> bool:
    """Whether both readers refuse, each as it should; a file that one of them takes is none."""
    outcomes = [outcome(read, data) for read in READERS]
    assert set(outcomes) <= {"", "PLAN_CORRUPT"}
    return all(outcomes)


@pytest.mark.parametrize("one_in", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_flipped_bit_of_a_plan_is_refused(one_in: int) -> None:
    data = encode_plan(prepare_memory(small(), mode="inference", preset="inference", token=TOKEN, arenas=arenas()))
    for bit in range(0, len(data) * 8, one_in):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert is_refused(bytes(damaged)), f"bit {bit}"


def test_flipped_bit_of_a_graph_is_refused_or_another_graph() -> None:
    """An IR file has no digest; its hash names it."""
    original = small()
    data = encode_graph(original)
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        if not is_refused(bytes(damaged)):
            assert encode_graph(read_graph(bytes(damaged))) == bytes(damaged) != data


@pytest.mark.parametrize("data", FILES)
def test_truncated_files_are_refused(data: bytes) -> None:
    step = max(1, len(data) // 500)
    assert all(is_refused(data[:length]) for length in range(0, len(data), step))
    assert all(is_refused(data[length:]) for length in range(1, len(data), step))


@pytest.mark.parametrize("data", FILES)
def test_files_with_bytes_changed_never_crash(data: bytes) -> None:
    dice = random.Random(7)
    for _ in range(800):
        damaged = bytearray(data)
        for _ in range(dice.randrange(1, 6)):
            position = dice.randrange(len(damaged))
            damaged[position : position + dice.randrange(3)] = dice.randbytes(dice.randrange(4))
        is_refused(bytes(damaged))


def test_random_bytes_are_refused() -> None:
    dice = random.Random(8)
    for _ in range(3000):
        assert is_refused(dice.randbytes(dice.randrange(64)))


def test_oversized_declarations_are_refused_at_once() -> None:
    for head in range(0x40, 0xC0):
        if head & 31 in (26, 27):
            size = 4 if head & 31 == 26 else 8
            for filling in (b"\x7f", b"\xff", b"\x0f"):
                assert is_refused(bytes([head]) + filling * size + b"\x00" * 40)


def test_large_garbage_takes_linear_time() -> None:
    assert is_refused(b"\x80" * 300_000)
    assert is_refused(b"\x9a\x00\x04\x93\xe0" + b"\x80" * 300_000)
    assert is_refused(b"\xa1\x61a\x9a\x00\x04\x93\xe0" + b"\x18\x18" * 300_000)
