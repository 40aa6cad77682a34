"""Execution orders: by id where legal, else topological; illegal orders are refused."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from tests.strategies import Builder, graphs
from tmmu.errors import InvalidConfig, InvalidIrShapes, LivenessCycle
from tmmu.ir.graph import Graph, Ops
from tmmu.planner.order import check_order, derive_order


def permute_ops(graph: Graph, ids: list[int]) -> Graph:
    """The graph with op ``ids[i]`` as op i."""
    columns = {name: tuple(getattr(graph.ops, name)[old] for old in ids) for name in Ops.__slots__}
    return replace(graph, ops=Ops(**columns))


def cache_update() -> Graph:
    """0: y = f(state); 1: state changed in place; 2: z = g(state)."""
    b = Builder()
    state = b.buffer("state", (8,))
    y, z = b.buffer("activation", (8,)), b.buffer("activation", (8,))
    b.op([state], [y])
    b.op([state], [], [(state, b.whole[state])])
    b.op([state], [z])
    return b.build([y, z])


def test_program_order_is_kept_where_legal() -> None:
    assert derive_order(cache_update(), "inference") == (0, 1, 2)


def test_readers_of_old_contents_precede_the_writer() -> None:
    graph = permute_ops(cache_update(), [1, 2, 0])
    assert derive_order(graph, "inference") == (2, 0, 1)


def test_writers_of_a_buffer_keep_their_sequence() -> None:
    b = Builder()
    x, y, z = (b.buffer("activation", (8,)) for _ in range(3))
    b.op([], [x])
    b.op([x], [y])
    b.op([], [], [(x, b.whole[x])])
    b.op([x], [z])
    graph = b.build([x, y, z])
    assert derive_order(graph, "inference") == (0, 1, 2, 3)
    with pytest.raises(InvalidConfig):
        check_order(graph, "inference", (0, 2, 1, 3))
    with pytest.raises(InvalidConfig):
        check_order(graph, "inference", (2, 3, 0, 1))


def set_random_state_at(graph: Graph, op: int) -> Graph:
    targets = tuple("tmmu.set_random_state.default" if index == op else t for index, t in enumerate(graph.ops.target))
    return replace(graph, ops=replace(graph.ops, target=targets))


def test_order_that_moves_a_random_state_op_is_refused() -> None:
    b = Builder()
    buffers = [b.buffer("activation", (8,)) for _ in range(3)]
    for x in buffers:
        b.op([], [x])
    graph = b.build(buffers)
    assert check_order(graph, "inference", (0, 2, 1)) == (0, 2, 1)
    assert check_order(set_random_state_at(graph, 0), "inference", (0, 2, 1)) == (0, 2, 1)
    for op, order in ((1, (0, 2, 1)), (0, (1, 0, 2))):
        with pytest.raises(InvalidConfig, match="random state"):
            check_order(set_random_state_at(graph, op), "inference", order)


def test_derived_order_that_moves_a_random_state_op_is_refused() -> None:
    graph = permute_ops(cache_update(), [1, 2, 0])
    assert derive_order(graph, "inference") == (2, 0, 1)
    with pytest.raises(LivenessCycle, match="op 0 takes or sets the random state"):
        derive_order(set_random_state_at(graph, 0), "inference")


def test_ready_ops_run_by_smallest_id() -> None:
    b = Builder()
    buffers = [b.buffer("activation", (8,)) for _ in range(4)]
    for x in buffers[:3]:
        b.op([], [x])
    b.op(buffers[:3], [buffers[3]])
    graph = permute_ops(b.build([]), [3, 0, 1, 2])
    assert derive_order(graph, "inference") == (1, 2, 3, 0)


def test_cycle_error_names_its_ops() -> None:
    b = Builder()
    x, y, z = (b.buffer("activation", (8,)) for _ in range(3))
    b.op([], [x])
    b.op([x], [y])
    b.op([y], [z])
    graph = b.build([z])
    reads = (graph.ops.reads[0], (*graph.ops.reads[1], graph.ops.writes[2][0]), graph.ops.reads[2])
    with pytest.raises(LivenessCycle) as caught:
        derive_order(replace(graph, ops=replace(graph.ops, reads=reads)), "inference")
    ops = caught.value.fields["ops"]
    assert isinstance(ops, list)
    assert sorted(map(int, map(str, ops))) == [1, 2]


def test_op_that_needs_itself_is_a_cycle() -> None:
    b = Builder()
    x = b.buffer("activation", (8,))
    b.op([], [x])
    graph = b.build([x])
    with pytest.raises(LivenessCycle):
        derive_order(replace(graph, ops=replace(graph.ops, reads=(graph.ops.writes[0],))), "inference")


def test_later_stages_run_in_backward_mode_only() -> None:
    b = Builder()
    x, g = b.buffer("activation", (8,)), b.buffer("gradient", (8,))
    b.op([], [x])
    b.op([x], [g], stage="backward")
    b.op([g], [], stage="update")
    graph = b.build([])
    assert derive_order(graph, "forward") == derive_order(graph, "inference") == (0,)
    assert derive_order(graph, "backward") == (0, 1, 2)


def test_forward_op_that_reads_a_later_stage_is_refused() -> None:
    b = Builder()
    x, y = b.buffer("activation", (8,)), b.buffer("activation", (8,))
    b.op([], [x], stage="backward")
    b.op([x], [y])
    with pytest.raises(InvalidIrShapes):
        derive_order(b.build([]), "forward")


@settings(deadline=None)
@given(graphs(shuffled=True))
def test_every_read_finds_its_value(graph: Graph) -> None:
    order = derive_order(graph, "backward")
    assert sorted(order) == list(range(len(graph.ops)))
    last_writer: dict[int, int] = {}
    writer = {value: op for op, values in enumerate(graph.ops.writes) for value in values}
    for op in order:
        for value in graph.ops.reads[op]:
            assert last_writer.get(graph.values.buffer[value]) == writer.get(value)
        last_writer |= {graph.values.buffer[value]: op for value in graph.ops.writes[op]}
    assert check_order(graph, "backward", order) == order
