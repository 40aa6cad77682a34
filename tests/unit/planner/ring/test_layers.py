"""Ring problems of graphs: blocks, members, visits, pinned blocks, times of ops and copies."""

from dataclasses import replace

import pytest

from tests.layered import layered_graph, plan_graph
from tmmu.errors import InvalidConfig
from tmmu.ir.graph import Graph
from tmmu.ir.ring import Member, Visit
from tmmu.planner.ring.layers import ring_problem
from tmmu.planner.ring.prepare import problem_of
from tmmu.planner.ring.problem import RingProblem
from tmmu.planner.ring.profile import Profile, copy_time, op_time, parse_rate


def problem_for(graph: Graph, mode: str = "inference") -> RingProblem:
    return problem_of(graph, plan_graph(graph, mode), Profile())


def with_modules(graph: Graph, names: dict[int, str]) -> Graph:
    """The graph with other module notes."""
    module = tuple(names.get(op, name) for op, name in enumerate(graph.notes.ops.module))
    return replace(graph, notes=replace(graph.notes, ops=replace(graph.notes.ops, module=module)))


def test_layer_is_a_block_of_its_weights_in_id_order() -> None:
    layers = problem_for(layered_graph([512, 1000, 512]))
    assert layers.names == ("h.0", "h.1", "h.2")
    assert layers.bytes == (512, 1024, 512)
    assert layers.members[1] == (Member(buffer=3, offset=0), Member(buffer=4, offset=512))
    assert layers.visits == tuple(Visit(block=i, first=2 * i, last=2 * i + 1) for i in range(3))
    assert layers.pinned == (False,) * 3


def test_constant_belongs_to_its_layer_as_a_parameter_does() -> None:
    graph = layered_graph([512] * 3)
    roles = tuple("constant" if i == 3 else role for i, role in enumerate(graph.buffers.role))
    assert graph.buffers.role[3] == "parameter"
    assert problem_for(replace(graph, buffers=replace(graph.buffers, role=roles))) == problem_for(graph)


def test_weight_read_at_two_places_is_one_pinned_block() -> None:
    layers = problem_for(layered_graph([512] * 3, tied=256, unread=4096))
    assert layers.names == ("embed +1", "h.0", "h.1", "h.2")
    assert layers.bytes[0] == 256
    assert layers.pinned == (True, False, False, False)
    assert [visit for visit in layers.visits if visit.block == 0] == [
        Visit(block=0, first=0, last=0),
        Visit(block=0, first=7, last=7),
    ]


def test_unread_weight_takes_no_room() -> None:
    graph = layered_graph([512] * 3, tied=256, unread=4096)
    members = [member.buffer for row in problem_for(graph).members for member in row]
    unread = graph.notes.buffers.index("unread.weight")
    assert unread not in members
    assert len(members) == len(set(members)) == 7


def test_layer_of_a_training_step_is_visited_in_both_stages_and_may_stream() -> None:
    layers = problem_for(layered_graph([512] * 4, backward=True), "backward")
    assert layers.pinned == (False,) * 4
    assert [(visit.first, visit.last) for visit in layers.visits if visit.block == 0] == [(0, 1), (14, 15)]
    assert layers.visit_counts == (2, 2, 2, 1)


def test_two_visits_with_little_in_between_are_merged() -> None:
    """The last two layers are held from forward to backward; the second is smaller than what lies between."""
    layers = problem_for(layered_graph([512, 512, 2048, 1024], backward=True), "backward")
    spans = {block: [(v.first, v.last) for v in layers.visits if v.block == block] for block in range(4)}
    assert spans[3] == [(6, 9)]
    assert spans[2] == [(4, 11)]
    assert spans[1] == [(2, 3), (12, 13)]


def test_returned_weight_is_pinned() -> None:
    graph = layered_graph([512] * 3)
    weight = graph.values.buffer.index(graph.notes.buffers.index("h.1.a.weight"))
    layers = problem_for(replace(graph, outputs=(*graph.outputs, weight)))
    assert layers.pinned == (False, True, False)


def test_large_numbered_part_is_split_by_its_own_numbers() -> None:
    graph = layered_graph([512] * 6)
    names = {op: f"stages.{op // 8}.blocks.{op // 2 % 4}.w" for op in range(12)}
    expected = tuple(f"stages.{i // 4}.blocks.{i % 4}" for i in range(6))
    assert problem_for(with_modules(graph, names)).names == expected
    many = layered_graph([512] * 20)
    deep = {op: f"h.{op // 2}.experts.{op % 2}" for op in range(40)}
    assert problem_for(with_modules(many, deep)).names == tuple(f"h.{i}" for i in range(20))


def test_small_use_joins_its_neighbour() -> None:
    graph = layered_graph([4096] * 3 + [8])
    assert problem_for(graph).names == ("h.0", "h.1", "h.2")
    assert problem_for(graph).visits[-1] == Visit(block=2, first=4, last=7)
    first = layered_graph([8] + [4096] * 3)
    assert problem_for(first).names == ("h.1", "h.2", "h.3")


def test_small_use_joins_no_other_stage() -> None:
    """The last layer is small, and read forward and then backward: it joins its neighbour in each."""
    layers = problem_for(layered_graph([4096] * 3 + [8], backward=True), "backward")
    assert layers.names == ("h.0", "h.1", "h.2")
    assert layers.pinned == (False,) * 3
    assert [(v.first, v.last) for v in layers.visits if v.block == 2] == [(4, 11)]


def test_names_of_weights_tell_the_layers_without_notes() -> None:
    graph = layered_graph([512] * 3)
    bare = with_modules(graph, dict.fromkeys(range(6), ""))
    assert problem_for(bare) == problem_for(graph)


def test_alignment_is_that_of_the_parameters() -> None:
    plan = plan_graph(layered_graph([100] * 4), alignment=128)
    layers = problem_of(layered_graph([100] * 4), plan, Profile())
    assert layers.alignment == 128
    assert layers.bytes == (256,) * 4
    assert layers.members[0][1].offset == 128


def test_op_time_is_arithmetic_or_bytes() -> None:
    graph = layered_graph([4000, 4000])
    slow = Profile(flops=1000, memory=10**12)
    assert op_time(slow, graph, 1) == 1001 * 10**6
    narrow = Profile(flops=10**15, memory=1000)
    assert op_time(narrow, graph, 0) == (2000 + 32 + 32) * 10**6
    looks_up = replace(graph, ops=replace(graph.ops, target=("aten.embedding.default", *graph.ops.target[1:])))
    assert op_time(narrow, looks_up, 0) == 3 * 32 * 10**6


def test_copy_time_is_bytes_and_a_fixed_cost() -> None:
    assert copy_time(Profile(link=10**9, copy_ns=7), 1000) == 1007
    assert copy_time(Profile(link=3 * 10**9, copy_ns=0), 1000) == 334


@pytest.mark.parametrize(
    ("text", "unit", "rate"),
    [
        ("24GB/s", "B", 24 * 10**9),
        ("24 gb/s", "B", 24 * 10**9),
        ("1.5TB/s", "B", 1500 * 10**9),
        ("20GiB/s", "B", 20 * 2**30),
        ("100B/s", "B", 100),
        ("150TFLOP/s", "FLOP", 150 * 10**12),
        ("150 TFLOPs/s", "FLOP", 150 * 10**12),
        ("0.5kB/s", "B", 500),
    ],
)
def test_rates_are_parsed(text: str, unit: str, rate: int) -> None:
    assert parse_rate(text, unit) == rate


@pytest.mark.parametrize(
    "text", ["", "24", "24GB", "24GB/h", "-1GB/s", "0GB/s", "24XB/s", "1e9B/s", "24TFLOP/s", "9" * 18 + "PB/s"]
)
def test_malformed_rates_are_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="rate"):
        parse_rate(text, "B")


def test_flop_rates_have_no_binary_prefix() -> None:
    with pytest.raises(InvalidConfig, match="not a rate"):
        parse_rate("1GiFLOP/s", "FLOP")


def test_graph_without_parameters_has_no_layers() -> None:
    graph = layered_graph([512])
    state = replace(
        graph,
        buffers=replace(graph.buffers, role=tuple("state" if r == "parameter" else r for r in graph.buffers.role)),
    )
    layers = ring_problem(state, range(2), mode="inference", preset="inference", alignment=64, profile=Profile())
    assert layers.bytes == layers.visits == ()
