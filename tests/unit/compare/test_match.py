"""Which op is which after an edit: by everything that an edit leaves, and no more than that."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import graphs
from tests.unit.ir.programs import plan_program
from tmmu.compare.match import match_graphs
from tmmu.ir.graph import Graph

NET = """
input x 4
parameter up.weight 16
parameter down.weight 16
a 16 = up mm x up.weight
b 16 = act relu a over a
c 4 = down mm b down.weight
d 4 = . add x c
return d
"""


def ops(before: str, after: str) -> list[tuple[int, int]]:
    matching = match_graphs(plan_program(before), plan_program(after))
    return sorted([*matching.ops, *matching.moved])


def buffers(before: str, after: str) -> dict[str, str]:
    """Matched buffers by the names that the programs give them."""
    names = [
        [line.split()[line.split()[0] in ("input", "parameter", "state")] for line in lines(text)]
        for text in (before, after)
    ]
    return {names[0][a]: names[1][b] for a, b in match_graphs(plan_program(before), plan_program(after)).buffers}


def lines(text: str) -> list[str]:
    return [line for line in text.strip().splitlines() if not line.startswith("return")]


@given(graphs(joint=None))
def test_program_matches_itself(graph: Graph) -> None:
    same = plan_program(graph, mode="backward")
    matching = match_graphs(same, same)
    assert matching.ops == tuple((i, i) for i in range(len(same.plan.order)))
    assert not matching.moved
    assert {(b, b) for b in same.plan.buffers.id} <= set(matching.buffers)
    assert all(a == b for a, b in matching.buffers)


@given(graphs(joint=None), graphs(joint=None), st.sampled_from(["inference", "backward"]))
def test_any_two_programs_match_each_op_and_buffer_once(before: Graph, after: Graph, mode: str) -> None:
    matching = match_graphs(plan_program(before, mode=mode), plan_program(after, mode=mode))
    for pairs in ([*matching.ops, *matching.moved], matching.buffers):
        assert len({a for a, _ in pairs}) == len({b for _, b in pairs}) == len(pairs)
    assert list(matching.ops) == sorted(matching.ops)


def test_inserted_op_has_no_match() -> None:
    after = NET.replace("c 4 =", "e 16 = act mul b b\nc 4 =").replace("mm b down", "mm e down")
    assert ops(NET, after) == [(0, 0), (1, 1), (2, 3), (3, 4)]


def test_of_two_like_ops_the_one_with_the_old_arguments_matches() -> None:
    after = NET.replace("d 4 = . add x c", "e 4 = . add x x\nd 4 = . add x c")
    assert ops(NET, after) == [(0, 0), (1, 1), (2, 2), (3, 4)]
    after = NET.replace("d 4 = . add x c\nreturn d", "d 4 = . add x c\ne 4 = . add d d\nreturn e")
    assert ops(NET, after) == [(0, 0), (1, 1), (2, 2), (3, 3)]


def test_ops_match_whatever_their_sizes() -> None:
    after = NET.replace(" 16 =", " 32 =").replace("weight 16", "weight 64")
    assert match_graphs(plan_program(NET), plan_program(after)).ops == ((0, 0), (1, 1), (2, 2), (3, 3))
    assert buffers(NET, after) == {name: name for name in ("x", "up.weight", "down.weight", "a", "b", "c", "d")}


def test_renamed_module_keeps_its_ops_and_weights() -> None:
    after = NET.replace("up", "expand").replace("down", "contract").replace("= act ", "= gelu_like ")
    assert ops(NET, after) == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert buffers(NET, after)["down.weight"] == "contract.weight"


def test_module_that_runs_elsewhere_matches() -> None:
    before = "input x 4\na 8 = one mm x\nb 4 = two relu x\nc 4 = three add a b\nreturn c"
    after = "input x 4\nb 4 = two relu x\na 8 = one mm x\nc 4 = three add a b\nreturn c"
    assert ops(before, after) == [(0, 1), (1, 0), (2, 2)]
    assert buffers(before, after) == {name: name for name in "xabc"}


def test_ops_of_another_stage_or_operator_do_not_match() -> None:
    assert ops(NET, NET.replace("act relu", "act gelu")) == [(0, 0), (2, 2), (3, 3)]
    later = plan_program(NET.replace("weight\nd 4 = . add x c", "weight\nd 4 = . add x c backward"), mode="backward")
    assert match_graphs(plan_program(NET, mode="backward"), later).ops == ((0, 0), (1, 1), (2, 2))


def test_buffers_without_a_place_are_not_matched_by_their_ops() -> None:
    before = plan_program(NET)
    empty = replace(before.plan.buffers, **dict.fromkeys(type(before.plan.buffers).__slots__, ()))
    matching = match_graphs(before, replace(before, plan=replace(before.plan, buffers=empty)))
    assert {a for a, _ in matching.buffers} == {0, 1, 2}


def test_equal_names_are_matched_in_order() -> None:
    before = "input x 4\nparameter w 4\na 4 = m mm x w\nreturn a"
    side = plan_program(before)
    twice = plan_program("input x 4\nparameter w 4\nparameter v 4\na 4 = m mm x w v\nreturn a")
    names = replace(twice.graph.notes, buffers=("x", "w", "w", ""))
    matching = match_graphs(side, replace(twice, graph=replace(twice.graph, notes=names)))
    assert set(matching.buffers) == {(0, 0), (1, 1), (2, 3)}
