"""Any legal graph has labels and a view, whatever its operators, shapes, order and roles."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.golden.graphs import FOLDER, GRAPHS
from tests.strategies import graphs
from tmmu.codec.read import read_graph
from tmmu.ir.graph import MODALITIES, PHASES, Graph
from tmmu.ir.plan import MODES
from tmmu.passes.semantics.patterns import PATTERNS
from tmmu.passes.semantics.view import SemanticView, semantic_view
from tmmu.passes.semantics.workload_class import ARCHITECTURES
from tmmu.planner.arenas import default_arenas
from tmmu.planner.prepare import prepare_memory
from tmmu.planner.token import token_from_seed


def view_of(graph: Graph, mode: str) -> SemanticView:
    plan = prepare_memory(
        graph, mode=mode, preset="inference", token=token_from_seed(0), arenas=default_arenas(alignment=256)
    )
    view = semantic_view(graph, plan)
    assert [row.op for row in view.ops] == list(plan.order)
    return view


def demand_well_formed(graph: Graph, view: SemanticView) -> None:
    assert view.workload.architecture in ARCHITECTURES
    assert {row.pattern for row in view.ops} <= set(PATTERNS)
    assert {row.phase for row in view.ops} <= set(PHASES)
    assert {row.modality for row in view.ops} <= set(MODALITIES)
    assert all(row.bytes >= 0 and row.flops >= 0 for row in view.ops)
    assert all(row.bytes <= 2 * touched_at_most(graph, row.op) for row in view.ops)
    assert view.path.cost <= sum(row.bytes for row in view.ops)
    assert view.path.cost >= max((row.bytes for row in view.ops), default=0)
    assert all(len(group.buffers) > 1 for group in view.groups)


def touched_at_most(graph: Graph, op: int) -> int:
    values = (*graph.ops.reads[op], *graph.ops.writes[op])
    return sum(graph.buffers.bytes[buffer] for buffer in {graph.values.buffer[value] for value in values})


NAMES = [
    "mm",
    "bmm",
    "baddbmm",
    "addmm",
    "mv",
    "addbmm",
    "linear",
    "_softmax",
    "add",
    "cat",
    "embedding",
    "_embedding_bag",
    "convolution",
    "convolution_backward",
    "tril",
    "le",
    "copy_",
    "index_put_",
    "index_copy_",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_backward",
    "native_layer_norm",
    "upsample_nearest2d",
    "max_pool2d_with_indices",
    "mkldnn_rnn_layer",
    "gelu",
    "sum",
    "index",
    "zeros_like",
]


@settings(max_examples=150, deadline=None)
@given(graphs(max_ops=14), st.randoms(use_true_random=False), st.sampled_from(MODES))
def test_random_graphs_have_a_view(graph: Graph, random, mode: str) -> None:  # type: ignore[no-untyped-def]
    target = tuple(f"aten.{random.choice(NAMES)}.default" for _ in graph.ops.ids)
    named = replace(graph, ops=replace(graph.ops, target=target))
    demand_well_formed(named, view_of(named, mode))


@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_golden_graphs_have_a_view(name: str) -> None:
    graph = read_graph(FOLDER / f"{name}.ir.cbor")
    demand_well_formed(graph, view_of(graph, "backward"))


@pytest.mark.parametrize(("name", "architecture", "phase"), [
    ("gpt2", "decoder", "llm_prefill"), ("llama-70b", "decoder", "llm_prefill"),
    ("llama-decode", "decoder", "llm_decode"),
])  # fmt: skip
def test_recorded_models_are_known(name: str, architecture: str, phase: str) -> None:
    graph = read_graph(FOLDER / f"{name}.ir.cbor")
    view = view_of(graph, "inference")
    demand_well_formed(graph, view)
    assert (view.workload.architecture, view.workload.phases) == (architecture, (phase,))
