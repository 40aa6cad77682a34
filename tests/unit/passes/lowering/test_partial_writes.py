"""Changes of part of a buffer, and of a tensor's shape: what the graph must say of them."""

import torch

from tmmu.ir.graph import Graph
from tmmu.passes.capture.program import Window
from tmmu.passes.capture.request import CaptureRequest, no_progress
from tmmu.passes.capture.trace import fake_environment, trace
from tmmu.passes.capture.workload import Workload
from tmmu.passes.lowering.mark_overwrites import spans_storage
from tmmu.passes.pipeline import lower_program


def graph_of(run: object, *shapes: tuple[int, ...]) -> Graph:
    with fake_environment("cpu"):
        work = Workload(name="f", folder="", run=run, args=tuple(map(torch.empty, shapes)))  # type: ignore[arg-type]
        return lower_program(trace(work, CaptureRequest(model="f", device="cpu"), no_progress)).graph


def spans(graph: Graph, value: int) -> bool:
    values = graph.values
    window = Window(0, values.offset[value], values.shape[value], values.stride[value], values.dtype[value])
    return spans_storage(window, graph.buffers.bytes[values.buffer[value]])


def test_an_op_that_changes_a_part_reads_the_whole_that_it_leaves_alone() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[1:2] = 0.0
        return y + 1

    graph = graph_of(run, (3, 4))
    op = next(i for i, target in enumerate(graph.ops.target) if target.startswith(("aten.fill_", "aten.copy_")))
    changed = graph.values.buffer[graph.ops.writes[op][0]]
    kept = [v for v in graph.ops.reads[op] if graph.values.buffer[v] == changed and spans(graph, v)]
    assert kept
    assert not set(kept) & set(graph.ops.writes[op])


def test_the_same_change_of_shape_is_made_each_time() -> None:
    def run(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = x * 2, x * 3
        a.t_()
        b.t_()
        return a @ torch.ones(2, 2), b @ torch.ones(2, 2)

    graph = graph_of(run, (2, 3))
    assert [graph.values.shape[v] for v in graph.outputs] == [(3, 2), (3, 2)]
