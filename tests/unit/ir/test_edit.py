"""Edits of a program keep graph, calls and halves in step: what stays is what was, under new ids."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import Builder, graphs, seeded
from tmmu.errors import InternalError
from tmmu.ir.edit import BufferRow, OpRow, ValueRow, insert_ops, keep_ops, replace_values, with_columns
from tmmu.ir.graph import PERSISTENT_ROLES, Graph
from tmmu.ir.program import ArgumentView, Call, GraphHalf, JointGraph, OutputDelivery, Program, ValueRef
from tmmu.judge.rules import check_graph


def program_of(graph: Graph, *, target: str = "aten.mm.default", joint: JointGraph | None = None) -> Program:
    """The graph with a call for each op, which reads and returns what the op does."""
    graph = replace(graph, ops=replace(graph.ops, target=(target,) * len(graph.ops)))
    calls = tuple(
        Call(operator=target, args=tuple(map(ValueRef, reads)), kwargs=(), results=writes, origin=op)
        for op, (reads, writes) in enumerate(zip(graph.ops.reads, graph.ops.writes, strict=True))
    )
    return Program(graph=graph, calls=calls, joint=joint)


def closed(program: Program, wanted: set[int]) -> list[int]:
    """These ops and all that they read from."""
    graph = program.graph
    writer = {value: op for op, writes in enumerate(graph.ops.writes) for value in writes}
    needed = {writer[value] for value in graph.outputs if value in writer} | wanted
    for op in reversed(range(len(graph.ops))):
        if op in needed:
            named = (*graph.ops.reads[op], *graph.ops.saves[op])
            needed |= {writer[value] for value in named if value in writer}
    return sorted(needed)


def diamond(joint: JointGraph | None = None) -> Program:
    """x -> a -> b; a -> c -> d, where d is the output: b (op 1) is read by nobody."""
    b = Builder()
    x, a, unread, c, d = b.buffer("input"), *(b.buffer("activation") for _ in range(4))
    for read, made in ((x, a), (a, unread), (a, c), (c, d)):
        b.op([read], [made])
    return program_of(b.build([d]), joint=joint)


@settings(max_examples=200, deadline=None)
@given(graphs(max_ops=12), st.sets(st.integers(0, 11)))
def test_kept_ops_are_legal_and_call_what_they_called(graph: Graph, wanted: set[int]) -> None:
    program = program_of(graph)
    ops = closed(program, {op for op in wanted if op < len(graph.ops)})
    kept = keep_ops(program, ops)
    assert not check_graph(kept.graph)
    assert [call.origin for call in kept.calls] == ops
    for call, old in zip(kept.calls, ops, strict=True):
        op = kept.calls.index(call)
        assert tuple(ref.value for ref in call.args) == kept.graph.ops.reads[op]
        assert len(call.results) == len(program.calls[old].results)
        assert kept.graph.ops.stage[op] == graph.ops.stage[old]
    persistent = [role for role in graph.buffers.role if role in PERSISTENT_ROLES]
    assert [role for role in kept.graph.buffers.role if role in PERSISTENT_ROLES] == persistent
    assert keep_ops(kept, range(len(kept.calls))) is kept


def test_dropped_op_takes_its_values_and_buffers_along() -> None:
    kept = keep_ops(diamond(), [0, 2, 3])
    assert len(kept.graph.buffers) == len(kept.graph.values) == 4
    assert kept.graph.ops.reads == ((0,), (1,), (2,))
    assert kept.graph.ops.writes == ((1,), (2,), (3,))
    assert kept.graph.outputs == (3,)


def test_kept_op_that_reads_a_dropped_one_is_an_internal_error() -> None:
    with pytest.raises(InternalError, match="the op that writes it is dropped"):
        keep_ops(diamond(), [0, 3])


def test_view_that_a_dropped_op_alone_read_goes_where_its_bytes_are_written_anyway() -> None:
    b = Builder()
    x, a, unread, out = b.buffer("input"), *(b.buffer("activation") for _ in range(3))
    b.op([x], [a])
    b.op([(a, (0, (4,), (1,), "float32"))], [unread])
    b.op([a], [out])
    program = program_of(b.build([out]))
    own = replace(program.calls[0], results=(program.graph.ops.writes[0][0],))
    program = replace(program, calls=(own, *program.calls[1:]))
    assert len(program.graph.ops.writes[0]) == 2
    assert len(keep_ops(program, [0, 2]).graph.ops.writes[0]) == 1


def test_window_that_says_which_bytes_change_stays_without_readers() -> None:
    b = Builder()
    x, s, unread = b.buffer("input"), b.buffer("state", (16,)), b.buffer("activation")
    part = (16, (4,), (1,), "float32")
    b.op([x], changes=[(s, part)])
    b.op([(s, part)], [unread])
    program = program_of(b.build())
    program = replace(program, calls=(replace(program.calls[0], results=()), program.calls[1]))
    kept = keep_ops(program, [0])
    assert not check_graph(kept.graph)
    assert [kept.graph.values.shape[value] for value in kept.graph.ops.writes[0]] == [(4,)]


def halves_of(outputs: tuple[Any, ...], *, after: int, forward_ops: int) -> JointGraph:
    deliveries = (OutputDelivery(after=after, outputs=(0,)),)
    forward = GraphHalf(arguments=("x",), outputs=outputs, deliveries=deliveries, objects=tuple(range(len(outputs))))
    backward = GraphHalf(arguments=(None,), outputs=(None,), deliveries=(), objects=(0,))
    return JointGraph(forward_ops=forward_ops, user_outputs=1, forward=forward, backward=backward, residuals=(1,))


def test_halves_move_with_their_ops_and_values() -> None:
    view = ArgumentView(argument=0, whole=True, shape=(8,), stride=(1,), offset=0)
    program = diamond(halves_of((ValueRef(3), view), after=3, forward_ops=3))
    joint = keep_ops(program, [0, 2, 3]).joint
    assert joint is not None
    assert joint.forward.outputs == (ValueRef(2), view)
    assert joint.forward.deliveries[0].after == joint.forward_ops == 2


def copy_of(program: Program, value: int, *, before: int, stage: str = "forward") -> Program:
    """The program with one more op that copies a value into a buffer of its own."""
    graph = program.graph
    values, made, new = graph.values, len(graph.buffers), len(graph.values)
    window = ValueRow(
        buffer=made, offset=0, shape=values.shape[value], stride=values.stride[value], dtype=values.dtype[value]
    )
    row = OpRow(
        before=before,
        target="aten.clone.default",
        reads=(value,),
        writes=(new,),
        call=Call(operator="aten.clone.default", args=(ValueRef(value),), kwargs=(), results=(new,)),
        stage=stage,
    )
    return insert_ops(program, [row], values=[window], buffers=[BufferRow(bytes=32, role="activation", name="copy")])


def test_inserted_op_stands_where_it_was_asked_for() -> None:
    longer = copy_of(diamond(halves_of((ValueRef(3), 1), after=3, forward_ops=3)), 1, before=2)
    assert longer.graph.ops.target[2] == "aten.clone.default"
    assert [call.origin for call in longer.calls] == [0, 1, -1, 2, 3]
    assert longer.graph.notes.buffers[-1] == "copy"
    assert not check_graph(longer.graph)
    assert longer.joint is not None
    assert (longer.joint.forward_ops, longer.joint.forward.deliveries[0].after) == (4, 4)


@pytest.mark.parametrize(("stage", "forward_ops"), [("forward", 4), ("backward", 3)])
def test_op_inserted_between_the_halves_belongs_to_the_half_of_its_stage(stage: str, forward_ops: int) -> None:
    longer = copy_of(diamond(halves_of((ValueRef(3), 1), after=3, forward_ops=3)), 1, before=3, stage=stage)
    assert longer.joint is not None
    assert longer.joint.forward_ops == forward_ops
    assert longer.joint.forward.deliveries[0].after == 3


@pytest.mark.parametrize("seed", range(20))
def test_dropping_what_was_inserted_gives_the_program_back(seed: int) -> None:
    pick = seeded(seed)
    program = diamond()
    before = pick(5)
    longer = copy_of(program, 0, before=before)
    assert keep_ops(longer, [op for op in range(5) if op != before]) == program


def test_replaced_value_has_no_reader_left() -> None:
    program = copy_of(diamond(), 1, before=1)
    copy = len(program.graph.values) - 1
    moved = replace_values(program, {1: copy}, since=2)
    assert [1 in reads for reads in moved.graph.ops.reads] == [False, True, False, False, False]
    assert [copy in reads for reads in moved.graph.ops.reads] == [False, False, True, True, False]
    assert moved.calls[2].args == (ValueRef(copy),)
    assert replace_values(program, {}) is program


def test_replaced_output_leaves_by_its_new_name() -> None:
    program = copy_of(diamond(halves_of((ValueRef(4), 1), after=4, forward_ops=4)), 4, before=4)
    moved = replace_values(program, {4: 5}, since=5)
    assert moved.graph.outputs == (5,)
    assert moved.joint is not None
    assert moved.joint.forward.outputs[0] == ValueRef(moved.graph.outputs[0])


def test_replaced_columns_leave_no_stale_hash() -> None:
    program = diamond()
    before = program.graph.ir_hash
    changed = with_columns(program, recompute=(True, False, False, False))
    assert changed.graph.ir_hash != before
    assert program.graph.ir_hash == before
