"""Updates right after their gradients: what it saves, that it means the step, that it has its bits; what forbids it."""

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import tmmu
from tests.runtime.harness import plan_of, same_bits
from tests.unit.judge.rewrite.programs import deep_step
from tests.unit.judge.rewrite.test_runs import run
from tmmu.ir.graph import Graph
from tmmu.ir.plan import segment_bytes
from tmmu.ir.rebuild import rebuild_graph
from tmmu.ir.rewrite import SAME, SUBLIST
from tmmu.judge.rewrite.check import require_meaning
from tmmu.judge.rewrite.facts import LIST_OPERATORS
from tmmu.judge.rules import require_legal
from tmmu.passes.lowering.read_calls import read_program
from tmmu.planner.fit.early_updates import _groups, early_updates, gradient_readers

LISTS = ("adamw:foreach", "adamw:fused", "adam:foreach", "sgd:momentum=0.9,foreach")


def rewritten(base: Graph, smallest: int = 1) -> Graph:
    rewrite = early_updates(base, smallest=smallest)
    graph = rebuild_graph(base, rewrite)
    require_legal(graph)
    require_meaning(base, graph, rewrite)
    return graph


def stack_of(graph: Graph) -> int:
    return segment_bytes(plan_of(read_program(graph), mode="backward", preset="train_full").arenas, "stack")


@pytest.mark.parametrize("optimizer", LISTS)
def test_gradients_go_after_their_updates(optimizer: str) -> None:
    base = deep_step(optimizer)
    graph = rewritten(base)
    layer = 4 * (64 * 64 + 64)
    assert stack_of(base) >= 8 * layer
    assert stack_of(graph) <= 3 * layer


@pytest.mark.parametrize(
    "optimizer",
    ["adafactor:foreach", "adagrad:foreach", "adagrad:fused,lr_decay=0.1", "adamax:foreach", "nadam:foreach",
     "radam:foreach", "rmsprop:foreach,centered=true", "rprop:foreach", "asgd:foreach", "adadelta:foreach"],
)  # fmt: skip
def test_lists_of_every_class_are_cut_as_far_as_the_judge_knows_them(optimizer: str) -> None:
    base = deep_step(optimizer)
    graph = rewritten(base)
    assert graph.calls is not None
    cut = {base.ops.target[op] for op in early_updates(base, smallest=1).origin if base.ops.stage[op] == "update"}
    assert len(graph.ops.ids) > len(base.ops.ids)
    assert any(target in LIST_OPERATORS for target in cut)


@pytest.mark.parametrize("optimizer", LISTS[:2])
def test_rewritten_step_has_the_bits_of_the_step(optimizer: str) -> None:
    base = deep_step(optimizer)
    expected, found = run(base), run(rewritten(base))
    assert len(expected) == len(found) > 40
    assert all(map(same_bits, expected, found))


def test_nothing_but_the_updates_is_moved() -> None:
    base = deep_step("adamw:foreach")
    rewrite = early_updates(base, smallest=1)
    others = [op for op, kind in zip(rewrite.origin, rewrite.kind, strict=True) if kind == SAME]
    assert others == [op for op in base.ops.ids if op not in set(rewrite.origin) - set(others)]
    assert rewrite.kind.index(SUBLIST) < len(rewrite.kind) - rewrite.kind.count(SUBLIST)


def test_updates_wait_for_what_reads_all_gradients() -> None:
    base = deep_step("clipped")
    graph = rewritten(base)
    assert stack_of(graph) >= 8 * 4 * 64 * 64


@pytest.mark.parametrize("optimizer", ["sgd:forloop", "adamw:forloop"])
def test_updates_of_one_parameter_at_a_time_stay_whole(optimizer: str) -> None:
    rewrite = early_updates(deep_step(optimizer))
    assert set(rewrite.kind) == {SAME}
    assert list(rewrite.origin) == sorted(rewrite.origin)


@pytest.mark.parametrize(
    ("sizes", "smallest", "ranges"),
    [
        ([4, 4, 4], 1, [(0, 1), (1, 2), (2, 3)]),
        ([4, 4, 4], 8, [(0, 2), (2, 3)]),
        ([1, 1, 9, 1], 4, [(0, 2), (2, 4)]),
        ([9, 1, 9, 1, 1, 9], 4, [(0, 2), (2, 5), (5, 6)]),
        ([1, 1], 99, [(0, 2)]),
        ([1, 1, 256, 1], 4, [(0, 2), (2, 3), (3, 4)]),
    ],
)
def test_small_parameters_share_a_group(sizes: list[int], smallest: int, ranges: list[tuple[int, int]]) -> None:
    assert _groups(sizes, smallest) == ranges


LAYERS = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
HALVES = list(LAYERS.parameters())[:4], list(LAYERS.parameters())[4:]
ALL = torch.optim.AdamW(LAYERS.parameters(), foreach=True)
FUSED = torch.optim.AdamW(LAYERS.parameters(), fused=True)
TWO = [torch.optim.AdamW(half, foreach=True) for half in HALVES]
SCALER = torch.amp.GradScaler("cpu")


def plain(x: torch.Tensor) -> None:
    LAYERS(x).square().mean().backward()
    ALL.step()


def clips(x: torch.Tensor) -> None:
    LAYERS(x).square().mean().backward()
    nn.utils.clip_grad_norm_(LAYERS.parameters(), 1.0)  # reads them
    ALL.step()


def clips_before_fused(x: torch.Tensor) -> None:
    LAYERS(x).square().mean().backward()
    nn.utils.clip_grad_norm_(LAYERS.parameters(), 1.0)  # reads them
    FUSED.step()


def scales(x: torch.Tensor) -> None:
    SCALER.scale(LAYERS(x).square().mean()).backward()
    SCALER.step(ALL)  # reads them
    SCALER.update()


def sums_by_hand(x: torch.Tensor) -> None:
    LAYERS(x).square().mean().backward()
    total = sum(p.grad.square().sum() for p in LAYERS.parameters())  # reads them
    for p in LAYERS.parameters():
        p.grad.div_(total + 1.0)
    ALL.step()


def clips_one_half(x: torch.Tensor) -> None:
    LAYERS(x).square().mean().backward()
    nn.utils.clip_grad_norm_(HALVES[1], 1.0)  # reads them
    for optimizer in TWO:
        optimizer.step()


def scales_each(x: torch.Tensor) -> None:
    LAYERS(x).square().mean().backward()
    for p in LAYERS.parameters():
        p.grad.mul_(0.5)
    ALL.step()


def reports_a_norm(x: torch.Tensor) -> torch.Tensor:
    LAYERS(x).square().mean().backward()
    norm = nn.utils.get_total_norm([p.grad for p in LAYERS.parameters()])
    ALL.step()
    return norm


@pytest.mark.parametrize(
    ("step", "operator"),
    [
        (plain, ""),
        (clips, "_foreach_norm"),
        (clips_before_fused, "_foreach_norm"),
        (scales, "_amp_foreach_non_finite_check_and_unscale_"),
        (sums_by_hand, "pow"),
        (clips_one_half, "_foreach_norm"),
        (scales_each, ""),
        (reports_a_norm, ""),
    ],
)
def test_line_that_keeps_updates_behind_all_gradients_is_found(step: Callable[..., object], operator: str) -> None:
    graph = tmmu.plan(step, torch.zeros(2, 8), device="cuda").graph
    found = [(graph.ops.target[op].split(".")[1], graph.notes.ops.source[op]) for op in gradient_readers(graph)]
    lines, first = inspect.getsourcelines(step)
    expected = [
        (operator, f"{Path(__file__).name}:{first + n}") for n, line in enumerate(lines) if "reads them" in line
    ]
    assert found == expected
    assert bool(found) == bool(operator)


@pytest.mark.parametrize("optimizer", [*LISTS, "adamw:forloop"])
def test_updates_of_a_model_s_step_wait_for_nothing(optimizer: str) -> None:
    assert gradient_readers(deep_step(optimizer)) == ()
