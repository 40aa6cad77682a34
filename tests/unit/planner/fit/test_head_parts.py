"""Heads in parts: what they save, that they mean the step and have its bits, or are near; what is not cut."""

from functools import cache

import pytest
import torch

from tests.runtime.harness import TOKEN, plan_of
from tests.unit.ir.samples import edit
from tests.unit.planner.fit.head_models import (
    BATCH,
    CLASSES,
    LENGTH,
    MODELS,
    head_step,
    run_twice,
    run_with_sanitizer,
    same_results,
    weights,
)
from tmmu.errors import UnsupportedOp
from tmmu.ir.graph import Graph
from tmmu.ir.ids import OpId
from tmmu.ir.plan import segment_bytes
from tmmu.ir.rebuild import rebuild_graph
from tmmu.ir.rewrite import LIKE, PART, PICKED, PLACED, SAME, SUMMAND, Rewrite
from tmmu.judge.rewrite.check import require_meaning
from tmmu.judge.rewrite.parts import NEAR_RULES
from tmmu.judge.rules import require_legal
from tmmu.passes.lowering.read_calls import read_program
from tmmu.passes.lowering.rewrite_program import rewrite_program
from tmmu.planner.fit.early_updates import early_updates
from tmmu.planner.fit.head_parts import head_parts, row_ranges, rows_box
from tmmu.runtime.execute.bind import bind

NEAR = frozenset(NEAR_RULES.values())
NOT_CUT = ("of its value", "weighted", "ignores a class")
CUT = [name for name in MODELS if name not in NOT_CUT]
QUICK = ("short floats", "a share of a sum", "frozen in short floats", "two of them")
EACH = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CUT]
WITHOUT_WEIGHT_GRADIENT = ("frozen", "frozen in short floats")
LOGITS = BATCH * LENGTH * CLASSES * 4


@cache
def results_of(name: str) -> dict[str, torch.Tensor]:
    """Of two steps of the base."""
    return run_twice(head_step(name))


def rewritten(base: Graph, parts: int = 6, *, near: bool = False) -> tuple[Graph, Rewrite]:
    rewrite = head_parts(base, parts, near=near, smallest=1)
    graph = rebuild_graph(base, rewrite)
    require_legal(graph)
    require_meaning(base, graph, rewrite, near=NEAR if near else frozenset())
    return graph, rewrite


def stack_of(graph: Graph) -> int:
    return segment_bytes(plan_of(read_program(graph), mode="backward", preset="train_full").arenas, "stack")


def largest(graph: Graph) -> int:
    """Bytes of the largest buffer that some value is on and that does not persist."""
    return max(
        graph.buffers.bytes[buffer]
        for buffer in set(graph.values.buffer)
        if graph.buffers.role[buffer] in ("activation", "gradient")
    )


@pytest.mark.parametrize("name", EACH)
def test_parts_have_the_bits_of_the_step(name: str) -> None:
    base = head_step(name)
    graph, rewrite = rewritten(base)
    assert {PART, PLACED, LIKE, PICKED} <= set(rewrite.kind)
    assert same_results(results_of(name), run_twice(graph))


@pytest.mark.parametrize("name", EACH)
def test_near_parts_differ_by_the_sums_of_the_weights_alone(name: str) -> None:
    base = head_step(name)
    graph, rewrite = rewritten(base, near=True)
    assert (SUMMAND in rewrite.kind) == (name not in WITHOUT_WEIGHT_GRADIENT)
    expected, found = results_of(name), run_twice(graph)
    first = [name for name in expected if name.endswith("of step 0")]
    assert first
    assert all(expected[name].equal(found[name]) for name in first)
    dtype = torch.bfloat16 if "short" in name else torch.float32
    for state in expected:
        if "step" not in state and expected[state].dtype == torch.uint8:
            pair = expected[state].view(dtype).float(), found[state].view(dtype).float()
            assert torch.allclose(*pair, atol=torch.finfo(dtype).eps * 4, rtol=0.01)


@pytest.mark.parametrize("near", [False, True])
def test_parts_are_clean_under_the_sanitizer(near: bool) -> None:
    graph, _ = rewritten(head_step("short floats"), near=near)
    assert run_with_sanitizer(graph) > len(graph.ops)


@pytest.mark.parametrize("name", NOT_CUT)
def test_what_cannot_be_cut_stays_as_it_is(name: str) -> None:
    rewrite = head_parts(head_step(name), 6, near=True, smallest=1)
    assert set(rewrite.kind) == {SAME}
    assert list(rewrite.origin) == [*range(len(head_step(name).ops))]


@pytest.mark.parametrize("parts", [0, 1])
def test_one_part_is_the_whole(parts: int) -> None:
    assert set(head_parts(head_step("tied"), parts, smallest=1).kind) == {SAME}


def test_small_heads_stay_whole() -> None:
    base = head_step("tied")
    assert set(head_parts(base, 6, smallest=LOGITS + 1).kind) == {SAME}
    assert head_parts(base, 6) == head_parts(base, 6, smallest=LOGITS)
    assert PART in head_parts(base, 6).kind
    beside = len(base.buffers) - 1 - base.buffers.role[::-1].index("activation")
    large = edit(base, "buffers.bytes", LOGITS * 1001, beside)
    assert set(head_parts(large, 6).kind) == {SAME}


@pytest.mark.parametrize(
    "name", ["tied", "frozen", "frozen in short floats", "of all rows", "a share of a sum", "two of them", "capped"]
)
def test_logits_are_never_whole(name: str) -> None:
    base = head_step(name)
    graph, rewrite = rewritten(base, near=True)
    assert largest(base) == LOGITS
    assert largest(graph) < LOGITS // 3
    assert stack_of(graph) < stack_of(base) // 2
    assert sum(graph.notes.ops.flops) == sum(base.notes.ops.flops)
    assert all(rewrite.part[row] for row in range(len(rewrite)) if rewrite.kind[row] != SAME)


def test_gradient_of_logits_is_whole_where_weights_need_it() -> None:
    graph, _ = rewritten(head_step("tied"))
    assert largest(graph) == LOGITS
    assert stack_of(graph) < stack_of(head_step("tied")) * 2 // 3


def test_parts_and_early_updates_are_one_rewrite() -> None:
    base = head_step("short floats")
    parted, first = rewritten(base)
    both = early_updates(base, first, smallest=1)
    graph = rebuild_graph(base, both)
    require_legal(graph)
    require_meaning(base, graph, both)
    assert graph.ir_hash == rebuild_graph(parted, early_updates(parted, smallest=1)).ir_hash
    assert same_results(results_of("short floats"), run_twice(graph))


def test_rewrite_is_deterministic() -> None:
    base = head_step("tied")
    assert head_parts(base, 6, smallest=1) == head_parts(base, 6, smallest=1)
    assert rewritten(base)[0].ir_hash == rewritten(base)[0].ir_hash


@pytest.mark.parametrize(
    ("rows", "period", "parts", "ranges"),
    [
        (128, 128, 2, [(0, 64), (64, 128)]),
        (512, 512, 3, [(0, 128), (128, 320), (320, 512)]),
        (100, 100, 3, [(0, 33), (33, 66), (66, 100)]),
        (100, 100, 50, [(0, 33), (33, 66), (66, 100)]),
        (40, 40, 4, [(0, 40)]),
        (144, 72, 3, [(0, 36), (36, 72), (72, 108), (108, 144)]),
        (160, 40, 2, [(0, 80), (80, 160)]),
        (160, 40, 3, [(0, 40), (40, 80), (80, 160)]),
        (160, 40, 99, [(0, 40), (40, 80), (80, 120), (120, 160)]),
        (16, 4, 3, [(0, 16)]),
        (100, 0, 3, None),
        (100, 33, 3, None),
    ],
)
def test_ranges_of_rows(rows: int, period: int, parts: int, ranges: list[tuple[int, int]] | None) -> None:
    assert row_ranges(rows, period, parts) == ranges


@pytest.mark.parametrize(
    ("shape", "rows", "box"),
    [
        ((8, 5), (2, 4), ((2, 4), (0, 5))),
        ((8, 5), (7, 9), None),
        ((2, 4, 5), (4, 8), ((1, 2), (0, 4), (0, 5))),
        ((2, 4, 5), (5, 8), ((1, 2), (1, 4), (0, 5))),
        ((2, 4, 5), (3, 5), None),
        ((2, 3, 4, 5), (13, 15), ((1, 2), (0, 1), (1, 3), (0, 5))),
    ],
)
def test_rows_that_are_a_box(shape: tuple[int, ...], rows: tuple[int, int], box: object) -> None:
    assert rows_box(shape, *rows) == box


def test_binding_refuses_parts_whose_bits_differ_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    base = read_program(head_step("tied"))
    program = rewrite_program(base, head_parts(base.graph, 4, smallest=1))
    plan = plan_of(program, mode="backward", preset="train_full")
    bind(program, plan, token=TOKEN, weights=weights(program.graph), device="cpu").close()
    monkeypatch.setattr("tmmu.runtime.execute.bind.differing_parts", lambda *_: [OpId(3)])
    with pytest.raises(UnsupportedOp, match=r"parts of op 3 .* have other bits than the whole on cpu"):
        bind(program, plan, token=TOKEN, weights=weights(program.graph), device="cpu")
