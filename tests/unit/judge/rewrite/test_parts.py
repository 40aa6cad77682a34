"""Ops in parts mean their base, or the judge of rewrites says where they do not: each demand on parts broken once."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache

import pytest

from tests.strategies import seeded
from tests.unit.ir.samples import edit
from tests.unit.judge.rewrite.rewriter import edited, without_arguments
from tests.unit.judge.rewrite.test_runs import require_bits_of_mutations
from tests.unit.planner.fit.head_models import head_step, run_twice, same_results
from tmmu.errors import InternalError, RewriteUnsound
from tmmu.ir.graph import Graph
from tmmu.ir.rebuild import rebuild_graph
from tmmu.ir.rewrite import CLASSES, LIKE, LOSS, PART, PICKED, PLACED, ROWS, SAME, SUMMAND, WEIGHT, Rewrite
from tmmu.judge.rewrite.check import check_rewrite, near_rules, require_meaning, require_rows
from tmmu.judge.rewrite.context import calls_of
from tmmu.judge.rewrite.parts import NEAR_RULES
from tmmu.judge.rules import check_graph
from tmmu.planner.fit.head_parts import head_parts

NEAR = frozenset(NEAR_RULES.values())
Pair = tuple[Graph, Rewrite]


def base() -> Graph:
    return head_step("short floats")


@cache
def cut(*, near: bool = True, model: str = "short floats") -> Pair:
    """The head of the base in parts."""
    rewrite = head_parts(head_step(model), 6, near=near, smallest=1)
    return rebuild_graph(head_step(model), rewrite), rewrite


def rows_of(rewrite: Rewrite, kind: str, target: str = "", first: int | None = None) -> list[int]:
    """The ops of a kind, of an operator of the base, of a step of the loss."""
    names = base().ops.target
    return [
        row
        for row, each in enumerate(rewrite.kind)
        if each == kind
        and target in names[rewrite.origin[row]]
        and (first is None or rewrite.part[row][:1] == (first,))
    ]


def moved(rewrite: Rewrite, order: Sequence[int]) -> Rewrite:
    columns = {name: tuple(getattr(rewrite, name)[row] for row in order) for name in ("origin", "kind", "part")}
    return replace(rewrite, **columns)


def without(kind: str, target: str = "", first: int | None = None, which: int = -1) -> Pair:
    """One op less, rebuilt."""
    _, rewrite = cut()
    row = rows_of(rewrite, kind, target, first)[which]
    short = moved(rewrite, [each for each in range(len(rewrite)) if each != row])
    return rebuild_graph(base(), short), short


def twice(kind: str, target: str = "") -> Pair:
    """One op again right after itself, rebuilt."""
    _, rewrite = cut()
    row = rows_of(rewrite, kind, target)[1]
    long = moved(rewrite, [*range(row + 1), *range(row, len(rewrite))])
    return rebuild_graph(base(), long), long


def exchanged(kind: str, target: str = "", first: int | None = None) -> Pair:
    """The parts of two ops are each other's, rebuilt."""
    _, rewrite = cut()
    one, other = rows_of(rewrite, kind, target, first)[1:3]
    for row, part in ((one, rewrite.part[other]), (other, rewrite.part[one])):
        rewrite = edited(rewrite, "part", row, part)
    return rebuild_graph(base(), rewrite), rewrite


def wider(kind: str, target: str = "", which: int = 1) -> Pair:
    """A part that begins a row before its place, rebuilt."""
    _, rewrite = cut()
    row = rows_of(rewrite, kind, target)[which]
    *axis, low, high = rewrite.part[row]
    rewrite = edited(rewrite, "part", row, (*axis, low - 1, high))
    return rebuild_graph(base(), rewrite), rewrite


def renamed(kind: str, part: tuple[int, ...], *, of: str = PART, target: str = "") -> Pair:
    """The graph as it is; an op is said to be another one."""
    graph, rewrite = cut()
    row = rows_of(rewrite, of, target)[1]
    return graph, edited(edited(rewrite, "kind", row, kind), "part", row, part)


def read_of_another_part(target: str) -> Pair:
    """A part takes what the part before it made, in a window of the same form."""
    graph, rewrite = cut()
    assert graph.calls is not None
    before, row = rows_of(rewrite, PART, target)[1:4:2]
    old, new = graph.calls.operands[row][0], graph.calls.operands[before][0]
    assert graph.values.shape[old] == graph.values.shape[new]
    for path, values in (("ops.reads", graph.ops.reads[row]), ("calls.operands", graph.calls.operands[row])):
        graph = edit(graph, path, tuple(new if value == old else value for value in values), row)
    return graph, rewrite


def moved_result() -> Pair:
    """A part lies elsewhere in its buffer than its readers take it from."""
    graph, rewrite = cut()
    assert graph.calls is not None
    row = rows_of(rewrite, PART, "clone")[1]
    value = graph.calls.operands[row][-1]
    graph = edit(
        graph, "buffers.bytes", graph.buffers.bytes[graph.values.buffer[value]] + 512, graph.values.buffer[value]
    )
    return edit(graph, "values.offset", graph.values.offset[value] + 512, value), rewrite


def written_beside() -> Pair:
    """A part writes another buffer too, which nobody reads."""
    graph, rewrite = cut()
    row = rows_of(rewrite, PART, "clone")[1]
    value = len(graph.values)
    buffer = len(graph.buffers)
    for path, entry in (
        ("buffers.bytes", 4), ("buffers.role", "activation"), ("notes.buffers", ""), ("values.buffer", buffer),
        ("values.offset", 0), ("values.shape", (1,)), ("values.stride", (1,)), ("values.dtype", "float32"),
    ):  # fmt: skip
        graph = edit(graph, path, (*_column(graph, path), entry))
    return edit(graph, "ops.writes", (*graph.ops.writes[row], value), row), rewrite


def _column(graph: Graph, path: str) -> tuple[object, ...]:
    found: object = graph
    for name in path.split("."):
        found = getattr(found, name)
    assert isinstance(found, tuple)
    return found


def overwriting() -> Pair:
    graph, rewrite = cut()
    row = rows_of(rewrite, PART, "_log_softmax.default")[1]
    return edit(graph, "ops.overwrites", ((graph.ops.writes[row][0], graph.ops.reads[row][0]),), row), rewrite


def not_read_before() -> Pair:
    """A part that does not read what it leaves alone."""
    graph, rewrite = cut()
    row = rows_of(rewrite, PLACED, "mm")[1]
    assert graph.calls is not None
    reads = tuple(value for value in graph.ops.reads[row] if value in graph.calls.operands[row])
    assert len(reads) < len(graph.ops.reads[row])
    return edit(graph, "ops.reads", reads, row), rewrite


def other_effect() -> Pair:
    graph, rewrite = cut()
    return edit(graph, "calls.effect", "once", rows_of(rewrite, PICKED)[0]), rewrite


BROKEN: dict[str, tuple[str, Callable[[], Pair]]] = {
    "a part that is no number": ("form", lambda: renamed(PART, ("a",))),  # type: ignore[arg-type]
    "a part of nothing": ("call", lambda: renamed(PART, (0, 3, 3))),
    "axes in another order": ("call", lambda: renamed(PART, (1, 0, 2, 0, 0, 1))),
    "an axis of a softmax": ("call", lambda: renamed(PART, (1, 0, 2), target="_log_softmax.default")),
    "a summand of what is no sum": ("call", lambda: renamed(SUMMAND, (0, 2))),
    "the form of what is read": ("call", lambda: renamed(LIKE, (0,))),
    "a step of what is no loss": ("call", lambda: renamed(PICKED, (LOSS,))),
    "a step that is none": ("call", lambda: renamed(PICKED, (9,), of=PICKED)),
    "another step": ("call", lambda: renamed(PICKED, (CLASSES,), of=PICKED)),
    "another effect": ("call", other_effect),
    "another part": ("operands", lambda: renamed(PART, (0, 0, 1, 1, 0, 36), target="clone")),
    "a missing part": ("operands", lambda: without(PART, "clone")),
    "a missing first part": ("operands", lambda: without(PLACED, "mm", which=0)),
    "a missing last part": ("operands", lambda: without(PLACED, "mm")),
    "a missing part between": ("operands", lambda: without(PLACED, "mm", which=2)),
    "a missing summand": ("operands", lambda: without(SUMMAND, which=2)),
    "a missing last summand": ("operands", lambda: without(SUMMAND)),
    "a missing row of the loss": ("operands", lambda: without(PICKED, first=ROWS)),
    "a part twice": ("operands", lambda: twice(PLACED, "mm")),
    "a summand twice": ("operands", lambda: twice(SUMMAND)),
    "overlapping parts": ("operands", lambda: wider(PLACED, "mm", which=2)),
    "overlapping summands": ("operands", lambda: wider(SUMMAND, which=2)),
    "parts in another order": ("operands", lambda: exchanged(PLACED, "mm")),
    "summands in another order": ("operands", lambda: exchanged(SUMMAND)),
    "rows of the loss in another order": ("operands", lambda: exchanged(PICKED, first=ROWS)),
    "what another part made": ("operands", lambda: read_of_another_part("_log_softmax_backward_data")),
    "a result elsewhere": ("operands", moved_result),
    "a write beside": ("operands", written_beside),
    "an overwriting": ("operands", overwriting),
    "what is left alone": ("operands", not_read_before),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_parts_are_refused(name: str) -> None:
    rule, make = BROKEN[name]
    try:
        graph, rewrite = make()
    except (InternalError, KeyError):
        pytest.fail("the rewrite was not made")
    faults = check_rewrite(base(), graph, rewrite, near=NEAR)
    assert {fault.rule for fault in faults} == {rule}, faults[:3]


@pytest.mark.parametrize("model", ["short floats", "tied", "frozen", "a share of a sum"])
@pytest.mark.parametrize("near", [False, True])
def test_parts_mean_the_base(model: str, near: bool) -> None:
    graph, rewrite = cut(near=near, model=model)
    assert check_graph(graph) == ()
    used = require_meaning(head_step(model), graph, rewrite, near=NEAR)
    assert used == near_rules(rewrite) == (NEAR if SUMMAND in rewrite.kind else frozenset())
    assert (SUMMAND in rewrite.kind) == (near and model != "frozen")


def test_near_parts_are_refused_unless_they_are_asked_for() -> None:
    graph, rewrite = cut()
    faults = check_rewrite(base(), graph, rewrite)
    assert {fault.rule for fault in faults} == {"nearness"}
    assert "sum of parts" in faults[0].what
    with pytest.raises(RewriteUnsound, match="nearness"):
        require_meaning(base(), graph, rewrite, near=frozenset({"another rule"}))


def test_parts_of_what_persists_are_refused() -> None:
    """A result that is there after the step is made once, whole."""
    clone = base().ops.target.index("aten.clone.default")
    kept = edit(base(), "buffers.role", "state", base().values.buffer[base().ops.writes[clone][0]])
    rewrite = head_parts(kept, 6, smallest=1)
    assert PART in rewrite.kind
    faults = check_rewrite(kept, rebuild_graph(kept, rewrite), rewrite)
    assert {fault.rule for fault in faults} == {"effects"}


def test_parts_of_complex_numbers_are_refused() -> None:
    """A product of them is contracted or not, by where it stands."""
    clone = base().ops.target.index("aten.clone.default")
    value = base().ops.reads[clone][0]
    changed = edit(base(), "values.dtype", "complex32", value)
    rewrite = head_parts(changed, 6, smallest=1)
    assert PART in rewrite.kind
    faults = check_rewrite(changed, rebuild_graph(changed, rewrite), rewrite)
    assert {fault.rule for fault in faults} == {"call"}
    assert "complex" in faults[0].what


def test_total_weight_of_another_loss_is_not_the_total_weight() -> None:
    """The loss of the picked rows makes a weight too; it stands for nothing."""
    graph, rewrite = cut()
    assert graph.calls is not None
    weight, loss = (rows_of(rewrite, PICKED, first=step)[0] for step in (WEIGHT, LOSS))
    first, second = graph.calls.operands[weight][-1], graph.calls.operands[loss][-1]
    gradient = rows_of(rewrite, PART, "nll_loss_backward")[0]
    for path, values in (("ops.reads", graph.ops.reads[gradient]), ("calls.operands", graph.calls.operands[gradient])):
        graph = edit(graph, path, tuple(second if value == first else value for value in values), gradient)
    assert {fault.rule for fault in check_rewrite(base(), graph, rewrite, near=NEAR)} == {"operands"}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 12))])
def test_mutation_of_parts_that_passes_both_judges_has_the_bits_of_the_base(seed: int) -> None:
    pair, count = cut(near=False), 120 if seed else 20
    require_bits_of_mutations(base(), pair, seeded(seed), count=count, run_graph=run_twice, is_same=same_results)


def test_operators_that_are_called_without_their_arguments_are_not_cut() -> None:
    """A base from a file says what it likes; planner and judge have neither torch nor a schema."""
    refused = set()
    for row, _ in enumerate(calls_of(base()).texts):
        forged = without_arguments(base(), row)
        if check_graph(forged):
            continue
        head_parts(forged, 6, smallest=1)
        rows = replace(cut()[1], base_hash=forged.ir_hash)
        with suppress(RewriteUnsound):
            require_rows(forged, rows)
            continue
        refused.add(base().ops.target[calls_of(base()).call.index(row)])
    assert refused >= {"aten._log_softmax.default", "aten.nll_loss_forward.default", "aten.nll_loss_backward.default"}


def test_every_op_that_is_not_cut_is_as_it_is() -> None:
    _, rewrite = cut()
    assert {SAME, LIKE, PICKED, PART, PLACED, SUMMAND} == set(rewrite.kind)
