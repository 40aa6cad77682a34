"""The view of a planned graph: bounds, critical paths, edges, what must lie together, lifecycles."""

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch.nn import functional

from tests.unit.passes.semantics import models
from tests.unit.passes.semantics.models import Stack, ids, program_of_module
from tmmu.ir.graph import Graph, blank_notes
from tmmu.ir.plan import Plan
from tmmu.passes.semantics.attentions import find_attentions
from tmmu.passes.semantics.critical_path import critical_path
from tmmu.passes.semantics.dataflow import dataflow_of
from tmmu.passes.semantics.view import bound_of, semantic_view
from tmmu.planner.arenas import default_arenas
from tmmu.planner.prepare import prepare_memory
from tmmu.planner.token import token_from_seed


def planned(graph: Graph) -> Plan:
    return prepare_memory(
        graph, mode="inference", preset="inference", token=token_from_seed(0), arenas=default_arenas(alignment=256)
    )


class Branches(torch.nn.Module):
    """A long branch of small ops beside a short branch of one large op."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        small = x
        for _ in range(4):
            small = small.sin()
        return (y @ y).sum() + small.sum()


def branches() -> Graph:
    return program_of_module(Branches, torch.zeros(2, 2), torch.zeros(64, 64)).graph


@pytest.mark.parametrize(
    ("flops", "size", "balance", "bound"),
    [
        (1000, 10, 100, "compute"), (999, 10, 100, "memory"), (0, 0, 100, "memory"), (5, 0, 100, "compute"),
        (1, 4, Fraction(1, 4), "compute"),
    ],
)  # fmt: skip
def test_bound_is_told_by_the_balance(flops: int, size: int, balance: Fraction, bound: str) -> None:
    assert bound_of(flops, size, Fraction(balance)) == bound


def test_higher_balance_never_makes_an_op_compute_bound() -> None:
    graph = program_of_module(Stack, ids(2, 8)).graph
    bounds = [
        [row.bound for row in semantic_view(graph, planned(graph), Fraction(balance)).ops]
        for balance in (1, 4, 16, 10**6)
    ]
    counts = [row.count("compute") for row in bounds]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1] == 0


def test_critical_path_follows_bytes_or_flops() -> None:
    graph = branches()
    view = semantic_view(graph, planned(graph))
    names = [graph.ops.target[op].split(".")[1] for op in view.path.ops]
    assert names == ["mm", "sum", "add"]
    assert view.path.cost == sum(view.ops[op].bytes for op in view.path.ops)
    assert [row.op for row in view.ops if row.critical] == list(view.path.ops)
    one_each = critical_path(dataflow_of(graph), [1] * len(graph.ops))
    assert [graph.ops.target[op].split(".")[1] for op in one_each.ops] == ["sin"] * 4 + ["sum", "add"]
    assert one_each.cost == 6


def test_critical_path_is_the_longest_of_all_paths() -> None:
    graph = program_of_module(models.Stages, torch.zeros(1, 1, 16, 16)).graph
    flow, cost = dataflow_of(graph), [(7 * op) % 11 for op in graph.ops.ids]

    def longest(op: int) -> int:
        return cost[op] + max((longest(w) for v in graph.ops.reads[op] if (w := flow.writer[v]) >= 0), default=0)

    path = critical_path(flow, cost)
    assert path.cost == max(longest(op) for op in graph.ops.ids) == sum(cost[op] for op in path.ops)
    for before, after in zip(path.ops, path.ops[1:], strict=False):
        assert before in {flow.writer[value] for value in graph.ops.reads[after]}


def test_edges_have_bytes_and_every_consumer() -> None:
    graph = branches()
    view = semantic_view(graph, planned(graph))
    reads = {(edge.value, op) for edge in view.edges for op in edge.consumers}
    assert reads == {(value, op) for op in graph.ops.ids for value in graph.ops.reads[op]}
    square = next(
        edge for edge in view.edges if edge.producer >= 0 and graph.ops.target[edge.producer] == "aten.mm.default"
    )
    assert (square.bytes, square.critical, len(square.consumers)) == (64 * 64 * 4, True, 1)
    assert [edge.producer for edge in view.edges if edge.value in graph.inputs] == [-1, -1]


def test_takeovers_lie_together_once() -> None:
    class Chain(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.relu(x.sin()).cos().sum()

    graph = program_of_module(Chain, torch.zeros(64)).graph
    plan = planned(graph)
    (group,) = semantic_view(graph, plan).groups
    assert (group.kind, group.bytes, len(group.buffers)) == ("takeover", 256, 3)
    assert group.ops == (0, 1, 2, 3)
    assert [row.together for row in semantic_view(graph, plan).ops] == [0, 0, 0, -1]


def test_cache_lies_together_with_the_ops_on_it() -> None:
    graph = program_of_module(lambda: models.Cached(5), ids(1, 1)).graph
    view = semantic_view(graph, planned(graph))
    (cache,) = [group for group in view.groups if group.kind == "cache"]
    assert [graph.buffers.role[buffer] for buffer in cache.buffers] == ["state", "state"]
    assert cache.bytes == 2 * 4 * 16 * 8 * 4
    names = [graph.ops.target[op].split(".")[1] for op in cache.ops]
    assert names.count("copy_") == 2
    assert len(names) == 3, "the attention reads both"


def test_lifecycle_says_what_is_written_and_how_long_it_lives() -> None:
    graph = program_of_module(lambda: models.Cached(5), ids(1, 1)).graph
    plan = planned(graph)
    view = semantic_view(graph, plan)
    rows = dict(zip((row.op for row in view.ops), view.lifecycles, strict=True))
    copies = [op for op in graph.ops.ids if graph.ops.target[op] == "aten.copy_.default"]
    assert {life.residency for op in copies for life in rows[op]} == {"stateful_kv_cache"}
    assert {(life.birth, life.death) for op in copies for life in rows[op]} == {(0, len(plan.order))}
    first = rows[plan.order[0]][0]
    row = plan.buffers.id.index(first.buffer)
    assert (first.residency, first.birth, first.death) == ("ephemeral_activation", 0, plan.buffers.death[row])


def test_graph_without_labels_gets_them_in_the_view() -> None:
    graph = program_of_module(models.Stages, torch.zeros(1, 1, 16, 16)).graph
    view = semantic_view(blank_notes(graph), planned(graph))
    assert {(row.phase, row.modality) for row in view.ops} == {("vision_encoding", "vision")}
    assert view.workload.phases == ("vision_encoding",)


def test_view_of_a_graph_stands_on_its_order() -> None:
    """Half of a training step: ops that the plan does not run are no part of the view."""
    graph = models.training_graph(lambda: torch.nn.Linear(4, 1), torch.zeros(1, 4))
    view = semantic_view(graph, planned(graph))
    assert len(view.ops) < len(graph.ops)
    assert {op for edge in view.edges for op in edge.consumers} <= {row.op for row in view.ops}


def test_cost_is_linear() -> None:
    """Twice the layers, twice the work: counted in reads that are followed, not in seconds."""
    calls: list[int] = []

    class Counting(list[int]):
        def __getitem__(self, index: object) -> int:  # type: ignore[override]
            calls.append(1)
            return super().__getitem__(index)  # type: ignore[call-overload, no-any-return]

    def count(layers: int) -> int:
        flow = dataflow_of(program_of_module(lambda: Stack(layers, composed=True), ids(1, 4)).graph)
        calls.clear()
        find_attentions(replace(flow, writer=Counting(flow.writer)))
        return len(calls)

    few, many = count(4), count(8)
    assert many < 2.2 * few
