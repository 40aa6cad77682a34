"""Coalescing: exactly the safe pairs of (written, read) buffers are taken over."""

import pytest

from tests.strategies import Builder
from tmmu.ir.graph import Graph
from tmmu.planner.arenas import default_arenas
from tmmu.planner.prepare import prepare_memory
from tmmu.planner.token import token_from_seed


def takeovers(graph: Graph, *, preset: str = "inference", mode: str = "inference") -> dict[int, int]:
    plan = prepare_memory(graph, mode=mode, preset=preset, token=token_from_seed(0), arenas=default_arenas())
    pairs = zip(plan.buffers.id, plan.buffers.takes_over, strict=True)
    return {new: old for new, old in pairs if new != old}


def pair(old_role: str = "activation", new_role: str = "activation") -> tuple[Builder, int, int]:
    b = Builder()
    x, y = b.buffer(old_role, (4, 4)), b.buffer(new_role, (4, 4))
    if old_role != "parameter":
        b.op([], [x])
    return b, x, y


def test_coalescing_takes_over_a_dying_argument() -> None:
    b, x, y = pair()
    b.op([x], [y], in_place=[(y, x)])
    assert takeovers(b.build([y])) == {y: x}
    assert takeovers(b.build([y]), preset="train_full") == {}
    assert takeovers(b.build([y]), preset="remat_enabled") == {y: x}


def test_coalescing_spares_arguments_read_later() -> None:
    b, x, y = pair()
    b.op([x], [y], in_place=[(y, x)])
    b.op([x])
    assert takeovers(b.build([y])) == {}


def test_coalescing_spares_outputs() -> None:
    b, x, y = pair()
    b.op([x], [y], in_place=[(y, x)])
    assert takeovers(b.build([x, y])) == {}


@pytest.mark.parametrize(("mode", "expected"), [("inference", {1: 0}), ("forward", {}), ("backward", {})])
def test_coalescing_spares_saved_values(mode: str, expected: dict[int, int]) -> None:
    b, x, y = pair()
    b.op([x], [y], in_place=[(y, x)], saves=[x])
    b.op([y])
    assert takeovers(b.build([]), mode=mode) == expected


@pytest.mark.parametrize("role", ["parameter", "state", "gradient"])
def test_coalescing_stays_within_an_arena(role: str) -> None:
    b, x, y = pair(role)
    b.op([x], [y], in_place=[(y, x)])
    assert takeovers(b.build([y])) == {}


def test_coalescing_covers_gradients() -> None:
    b, x, y = pair("gradient", "gradient")
    b.op([x], [y], in_place=[(y, x)])
    assert takeovers(b.build([y])) == {y: x}


def test_coalescing_spares_arguments_read_through_two_windows() -> None:
    b, x, y = pair()
    transposed = (0, (4, 4), (1, 4), "float32")
    b.op([x, (x, transposed)], [y], in_place=[(y, x)])
    assert takeovers(b.build([y])) == {}


def test_coalescing_takes_over_arguments_read_twice_through_one_window() -> None:
    b, x, y = pair()
    b.op([x, x], [y], in_place=[(y, x)])
    assert takeovers(b.build([y])) == {y: x}


def test_coalescing_spares_arguments_that_the_op_writes() -> None:
    b, x, y = pair()
    b.op([x], [y], [(x, b.whole[x])], in_place=[(y, x)])
    assert takeovers(b.build([y])) == {}


def test_coalescing_is_one_to_one() -> None:
    b = Builder()
    x, w, y, z = (b.buffer("activation", (4,)) for _ in range(4))
    b.op([], [x, w])
    b.op([x, w], [y, z], in_place=[(y, x), (z, x), (y, w), (z, w)])
    assert takeovers(b.build([y, z])) == {y: x, z: w}


def test_coalescing_spares_larger_storages() -> None:
    b = Builder()
    x, y = b.buffer("activation", (4,), tail=16), b.buffer("activation", (4,))
    b.op([], [x])
    b.op([x], [y], in_place=[(y, x)])
    assert takeovers(b.build([y])) == {}


@pytest.mark.parametrize("mode", ["forward", "backward"])
def test_coalescing_spares_what_the_last_op_saves(mode: str) -> None:
    b, x, y = pair()
    b.op([x], [y], in_place=[(y, x)], saves=[x])
    assert takeovers(b.build([]), mode=mode) == {}
    assert takeovers(b.build([]), mode=mode, preset="remat_enabled") == {}
