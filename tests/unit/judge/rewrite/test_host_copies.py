"""A copy back from the host is the copy that went: rewrites with both mean their base, and broken ones are refused."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.runtime.harness import TOKEN, plan_of, same_bits
from tests.strategies import seeded
from tests.unit.ir.samples import edit
from tests.unit.judge.rewrite.host_copies import copied, random_copies, rewrite_of, trips
from tests.unit.judge.rewrite.programs import step
from tests.unit.judge.rewrite.rewriter import edited
from tests.unit.judge.rewrite.test_check import Pair, recalled
from tests.unit.judge.rewrite.test_runs import require_bits_of_mutations, run
from tmmu.codec.fitted import rebuild_fitted
from tmmu.codec.read import read_plan
from tmmu.errors import InternalError, RewriteUnsound
from tmmu.ir.call_text import DEFAULT
from tmmu.ir.fit import FitRecord, fit_cost
from tmmu.ir.graph import HOST, HOST_COPY, PERSISTENT_ROLES, Graph
from tmmu.ir.plan import encode_plan
from tmmu.ir.rebuild import rebuild_graph
from tmmu.ir.rewrite import FROM_HOST, SAME, TO_HOST
from tmmu.judge.check import judge
from tmmu.judge.rewrite.check import check_rewrite, require_rows
from tmmu.judge.rules import check_graph
from tmmu.passes.lowering.read_calls import read_program


def base() -> Graph:
    return step("adamw:fused")


def pair() -> Pair:
    """Every trip."""
    rewrite = copied(base(), trips(base()))
    return rebuild_graph(base(), rewrite), rewrite


def row(kind: str, nth: int = 0) -> int:
    return [op for op, each in enumerate(pair()[1].kind) if each == kind][nth]


def operands(graph: Graph, op: int) -> tuple[int, ...]:
    assert graph.calls is not None
    return graph.calls.operands[op]


def source_of(nth: int) -> int:
    """What a copy to the host reads."""
    return operands(pair()[0], row(TO_HOST, nth))[0]


def copy_of(nth: int) -> int:
    """What it makes there."""
    return operands(pair()[0], row(TO_HOST, nth))[1]


def rewired(kind: str, new: int) -> Pair:
    """A copy of another value."""
    graph, rewrite = pair()
    op = row(kind)
    old = graph.ops.reads[op][0]
    graph = edit(graph, "ops.reads", (new,), op)
    return edit(
        graph, "calls.operands", tuple(new if value == old else value for value in operands(graph, op)), op
    ), rewrite


def on_the_device() -> Pair:
    graph, rewrite = pair()
    buffer = graph.values.buffer[graph.ops.writes[row(TO_HOST)][0]]
    return edit(graph, "buffers.role", "activation", buffer), rewrite


def exchanged(kind: str, *places: int) -> Pair:
    """Two copies stand for each other's origins."""
    graph, rewrite = pair()
    first, second = (row(kind, place) for place in places)
    for column in ("origin", "part"):
        one, other = getattr(rewrite, column)[first], getattr(rewrite, column)[second]
        rewrite = edited(edited(rewrite, column, first, other), column, second, one)
    return graph, rewrite


def named(part: tuple[int, ...]) -> Pair:
    """The first trip names another value."""
    graph, rewrite = pair()
    first = rewrite.part[row(TO_HOST)]
    for op, each in enumerate(rewrite.part):
        rewrite = edited(rewrite, "part", op, part) if each == first else rewrite
    return graph, rewrite


def older_copy() -> Pair:
    """What comes back was there before an addition in place, which went too."""
    graph = step("masks")
    change = graph.ops.target.index("aten.add_.Tensor")
    old, new = graph.ops.reads[change][0], graph.ops.writes[change][0]
    first = next(int(op) for op in graph.ops.ids if old in graph.ops.writes[op])
    last = max(op for op in graph.ops.ids if new in graph.ops.reads[op])
    rows = [(int(op), SAME, ()) for op in graph.ops.ids]
    rows[last:last] = [(change, TO_HOST, (new,)), (change, FROM_HOST, (new,))]
    rows.insert(change, (first, TO_HOST, (old,)))
    rewrite = rewrite_of(graph, rows)
    rebuilt = rebuild_graph(graph, rewrite)
    assert check_graph(rebuilt) == check_rewrite(graph, rebuilt, rewrite) == ()
    op, copy = rewrite.kind.index(FROM_HOST), rebuilt.ops.writes[rewrite.kind.index(TO_HOST)][0]
    rebuilt = edit(edit(rebuilt, "ops.reads", (copy,), op), "calls.operands", (copy, operands(rebuilt, op)[1]), op)
    assert check_graph(rebuilt) == ()
    return rebuilt, rewrite


def copy_of_what_it_changed() -> Pair:
    """The older copy says that the addition made it, which changed its buffer after it went."""
    graph, rewrite = older_copy()
    change = rewrite.origin[rewrite.kind.index(FROM_HOST)]
    return graph, edited(rewrite, "origin", rewrite.kind.index(TO_HOST), change)


BROKEN: dict[str, tuple[str, Callable[[], Pair]]] = {
    "an older copy": ("operands", older_copy),
    "a copy of what the op changed": ("call", copy_of_what_it_changed),
    "a copy back of another value's copy": ("operands", lambda: rewired(FROM_HOST, copy_of(1))),
    "a copy back of what never went": ("operands", lambda: rewired(FROM_HOST, source_of(0))),
    "a copy of another value to the host": ("operands", lambda: rewired(TO_HOST, source_of(1))),
    "a copy to the host that stays on the device": ("operands", on_the_device),
    "a copy to the host of what another op made": ("operands", lambda: exchanged(TO_HOST, 0, 1)),
    "a copy back of what another op made": ("operands", lambda: exchanged(FROM_HOST, -1, -2)),
    "another call": ("call", lambda: recalled(pair(), row(TO_HOST), [DEFAULT], 1)),
    "another effect": ("call", lambda: (edit(pair()[0], "calls.effect", "once", row(TO_HOST)), pair()[1])),
    "an earlier stage": ("call", lambda: (edit(pair()[0], "ops.stage", "forward", row(FROM_HOST, -1)), pair()[1])),
    "a value of another op": ("call", lambda: named((0,))),
    "no value": ("call", lambda: named(())),
    "a copy back before it went": ("form", lambda: (pair()[0], edited(pair()[1], "kind", row(TO_HOST), FROM_HOST))),
}  # fmt: skip


@pytest.mark.parametrize("optimizer", ["adamw:foreach", "adamw:fused"])
def test_copies_to_the_host_and_back_mean_the_base(optimizer: str) -> None:
    graph = step(optimizer)
    rewrite = copied(graph, trips(graph))
    rebuilt = rebuild_graph(graph, rewrite)
    assert check_graph(rebuilt) == check_rewrite(graph, rebuilt, rewrite) == ()
    targets = {graph.ops.target[rewrite.origin[op]] for op, kind in enumerate(rewrite.kind) if kind == TO_HOST}
    assert "aten.native_dropout.default" in targets, "what runs once is copied too"
    host = [buffer for buffer in rebuilt.buffers.ids if rebuilt.buffers.role[buffer] == HOST]
    assert len(host) == rewrite.kind.count(TO_HOST) == rewrite.kind.count(FROM_HOST) > 8
    assert sum(rebuilt.notes.ops.flops) == sum(graph.notes.ops.flops)


@pytest.mark.parametrize("name", BROKEN)
def test_broken_copies_are_refused(name: str) -> None:
    rule, make = BROKEN[name]
    graph, rewrite = make()
    origin = next(each for each in (base(), step("masks")) if each.ir_hash == rewrite.base_hash)
    assert {fault.rule for fault in check_rewrite(origin, graph, rewrite)} == {rule}


def test_what_persists_or_has_gaps_is_not_copied() -> None:
    """Nothing says what lies between the elements of a copy; what persists is where the base has it."""
    graph = base()
    persistent = next(
        (int(op), value)
        for op in graph.ops.ids
        for value in graph.ops.writes[op]
        if graph.buffers.role[graph.values.buffer[value]] in PERSISTENT_ROLES
    )
    value = trips(graph)[2][0]
    op = next(int(op) for op in graph.ops.ids if value in graph.ops.writes[op])
    assert graph.values.shape[value] == (4, 8)
    with_gaps = edit(graph, "values.shape", (4, 4), value)
    for changed, (origin, copied_value) in ((graph, persistent), (with_gaps, (op, value))):
        rows = [(int(each), SAME, ()) for each in changed.ops.ids]
        rows.insert(origin + 1, (origin, TO_HOST, (copied_value,)))
        with pytest.raises(RewriteUnsound, match="persists, or has gaps"):
            require_rows(changed, rewrite_of(changed, rows))


def test_ops_compute_nothing_on_the_host() -> None:
    """A reader of the device's value reads the host's copy of it, which has the same bits."""
    graph, rewrite = pair()
    copies = dict(operands(graph, op) for op, kind in enumerate(rewrite.kind) if kind == TO_HOST)
    reader, source = next(
        (op, value)
        for op in graph.ops.ids
        for value in graph.ops.reads[op]
        if value in copies and rewrite.kind[op] == SAME
    )
    copy = copies[source]
    moved = tuple(copy if value == source else value for value in graph.ops.reads[reader])
    graph = edit(edit(graph, "ops.reads", moved, reader), "calls.operands", tuple(
        copy if value == source else value for value in operands(graph, reader)), reader)  # fmt: skip
    assert {fault.rule for fault in check_graph(graph)} & {"host"}


def test_copy_has_the_form_of_what_it_copies() -> None:
    """A copy moves bytes: half of a value, or another layout, would be another call."""
    graph, copy = pair()[0], copy_of(0)
    for column, cell in (("shape", (4,)), ("stride", (0,)), ("dtype", "int32")):
        op = row(TO_HOST)
        faults = check_graph(edit(graph, f"values.{column}", cell, copy))
        assert (faults[0].rule, faults[0].op) == ("host", op)


def test_host_bytes_are_written_once() -> None:
    """Copies go on beside the ops, and nothing but their own fences keeps them apart."""
    graph, (first, second) = pair()[0], (copy_of(0), copy_of(1))
    assert graph.buffers.bytes[graph.values.buffer[first]] == graph.buffers.bytes[graph.values.buffer[second]]
    shared = edit(graph, "values.buffer", graph.values.buffer[first], second)
    assert "in host memory" in next(fault.what for fault in check_graph(shared) if fault.rule == "host")


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 20))])
def test_steps_with_copies_have_the_bits_of_their_base(seed: int) -> None:
    graph = step("adamw:foreach")
    rewrite = random_copies(graph, seeded(seed))
    found, expected = run(rebuild_graph(graph, rewrite)), run(graph)
    assert len(expected) == len(found) > 20
    assert all(map(same_bits, expected, found))


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 12))])
def test_mutation_of_copies_that_passes_both_judges_has_the_bits_of_the_base(seed: int) -> None:
    require_bits_of_mutations(base(), pair(), seeded(seed), count=80 if seed else 20)


def test_plan_s_file_says_copies_and_places_none_of_them() -> None:
    graph, rewrite = pair()
    plan = plan_of(read_program(graph), mode="backward", preset="train_full")
    plan = replace(plan, fit=FitRecord(rewrite=rewrite, cost=fit_cost(graph, rewrite, time_ppm=0)))
    read = read_plan(encode_plan(plan))
    assert read.fit is not None
    assert read.fit.rewrite == rewrite
    assert rebuild_fitted(base(), read).ir_hash == graph.ir_hash
    judge(graph, read, token=TOKEN)
    assert all(graph.buffers.role[buffer] != HOST for buffer in read.buffers.id)


def test_what_never_went_is_not_made() -> None:
    _, rewrite = pair()
    turned = edited(rewrite, "kind", row(TO_HOST), FROM_HOST)
    with pytest.raises(InternalError, match="has no from_host of"):
        rebuild_graph(base(), turned)
    with pytest.raises(InternalError, match="has no to_host of"):
        rebuild_graph(base(), edited(rewrite, "part", row(TO_HOST), ()))
    assert HOST_COPY in rebuild_graph(base(), rewrite).ops.target


def test_rows_of_a_file_that_come_back_before_they_went_are_refused() -> None:
    _, rewrite = pair()
    for broken in (edited(rewrite, "kind", row(TO_HOST), FROM_HOST), edited(rewrite, "part", row(TO_HOST), (2**63,))):
        with pytest.raises(RewriteUnsound):
            require_rows(base(), broken)
