"""Orders: by id where that is legal, else topological, and never against a dependence."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from tests.strategies import Builder, graphs
from tmmu.errors import InvalidConfig, InvalidIrShapes, LivenessCycle
from tmmu.ir.graph import Graph, Ops
from tmmu.planner.order import check_order, derive_order


def permuted(graph: Graph, ids: list[int]) -> Graph:
    """Op ``ids[i]`` of the graph becomes op i."""
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


def test_program_order_is_kept_where_it_is_legal() -> None:
    assert derive_order(cache_update(), "inference") == (0, 1, 2)


def test_a_reader_of_the_old_contents_comes_before_the_writer() -> None:
    graph = permuted(cache_update(), [1, 2, 0])
    assert derive_order(graph, "inference") == (2, 0, 1)


def test_a_write_without_a_read_still_follows_the_write_before_it() -> None:
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


def setting_the_state(graph: Graph, op: int) -> Graph:
    targets = tuple("tmmu.set_random_state.default" if at == op else t for at, t in enumerate(graph.ops.target))
    return replace(graph, ops=replace(graph.ops, target=targets))


def test_an_order_that_moves_what_sets_the_random_state_is_refused() -> None:
    b = Builder()
    made = [b.buffer("activation", (8,)) for _ in range(3)]
    for x in made:
        b.op([], [x])
    graph = b.build(made)
    assert check_order(graph, "inference", (0, 2, 1)) == (0, 2, 1)
    assert check_order(setting_the_state(graph, 0), "inference", (0, 2, 1)) == (0, 2, 1)
    for op, order in ((1, (0, 2, 1)), (0, (1, 0, 2))):
        with pytest.raises(InvalidConfig, match="random state"):
            check_order(setting_the_state(graph, op), "inference", order)


def test_where_ids_are_no_order_what_sets_the_random_state_must_not_need_to_move() -> None:
    graph = permuted(cache_update(), [1, 2, 0])
    assert derive_order(graph, "inference") == (2, 0, 1)
    with pytest.raises(LivenessCycle, match="op 0 takes or sets the random state"):
        derive_order(setting_the_state(graph, 0), "inference")


def test_ties_go_to_the_smallest_id() -> None:
    b = Builder()
    made = [b.buffer("activation", (8,)) for _ in range(4)]
    for x in made[:3]:
        b.op([], [x])
    b.op(made[:3], [made[3]])
    graph = permuted(b.build([]), [3, 0, 1, 2])
    assert derive_order(graph, "inference") == (1, 2, 3, 0)


def test_a_cycle_is_named() -> None:
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


def test_an_op_that_needs_itself_is_a_cycle() -> None:
    b = Builder()
    x = b.buffer("activation", (8,))
    b.op([], [x])
    graph = b.build([x])
    with pytest.raises(LivenessCycle):
        derive_order(replace(graph, ops=replace(graph.ops, reads=(graph.ops.writes[0],))), "inference")


def test_only_the_backward_mode_runs_later_stages() -> None:
    b = Builder()
    x, g = b.buffer("activation", (8,)), b.buffer("gradient", (8,))
    b.op([], [x])
    b.op([x], [g], stage="backward")
    b.op([g], [], stage="update")
    graph = b.build([])
    assert derive_order(graph, "forward") == derive_order(graph, "inference") == (0,)
    assert derive_order(graph, "backward") == (0, 1, 2)


def test_a_forward_op_that_needs_a_later_stage_is_malformed() -> None:
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
    held: dict[int, int] = {}
    written = {value: op for op, values in enumerate(graph.ops.writes) for value in values}
    for op in order:
        for value in graph.ops.reads[op]:
            assert held.get(graph.values.buffer[value]) == written.get(value)
        held |= {graph.values.buffer[value]: op for value in graph.ops.writes[op]}
    assert check_order(graph, "backward", order) == order
