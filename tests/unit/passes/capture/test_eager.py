"""The graph says what eager PyTorch does: same calls, same storages, same bytes, same last uses."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.unit.passes import models
from tests.unit.passes.eager import Witness
from tmmu.ir.graph import Graph
from tmmu.judge.check import judge
from tmmu.judge.rules import require_legal
from tmmu.passes.capture.request import CaptureRequest, no_progress
from tmmu.passes.capture.trace import fake_environment, trace
from tmmu.passes.capture.workload import Workload
from tmmu.passes.lowering.lower import lower
from tmmu.planner.arenas import default_arenas
from tmmu.planner.prepare import prepare_memory
from tmmu.planner.token import token_from_seed

IDS = ((2, 6), torch.int64)
CASES: dict[str, tuple[Callable[[], torch.nn.Module], list[Any], list[str]]] = {
    "decoder": (models.Decoder, [IDS], ["inference", "backward"]),
    "dropout": (lambda: models.Decoder(dropout=0.5), [IDS], ["inference", "backward"]),
    "convolutional": (models.Convolutional, [((2, 3, 8, 8), torch.float32)], ["inference", "backward"]),
    "cached": (models.Cached, [((1, 16), torch.float32)], ["inference"]),
    "recurrent": (models.Recurrent, [((2, 5, 8), torch.float32)], ["inference", "backward"]),
    "odd": (models.ViewsAndWrites, [((3, 4), torch.float32), ((3, 2), torch.float32)], ["inference"]),
}
ALL = [(name, mode) for name, (_, _, modes) in CASES.items() for mode in modes]


def loss(model: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
    return model(*inputs).float().pow(2).mean()


def example(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


def graph_of(name: str, mode: str) -> Graph:
    make, inputs, _ = CASES[name]
    with fake_environment("cpu"):
        model = make()
        workload = Workload(
            name=name, folder="", run=model, module=model, args=tuple(example(*i) for i in inputs), loss=loss
        )
        request = CaptureRequest(model=name, device="cpu", mode=mode)
        return lower(trace(workload, request, no_progress)).graph


def witness_run(name: str, mode: str) -> tuple[Witness, int]:
    make, inputs, _ = CASES[name]
    model = make().train(mode != "inference")
    args = [example(*i) for i in inputs]
    tensors = [*model.parameters(), *model.buffers(), *args]
    with Witness(tensors) as witness:
        before = len(witness.number)
        if mode == "inference":
            with torch.no_grad():
                model(*args)
        else:
            loss(model, *args).backward()
    return witness, before


def spans_of_run(witness: Witness, before: int) -> list[tuple[int, int, int, str]]:
    """(bytes, first call, last call, maker) of each storage that the run made, in order."""
    last: dict[int, int] = {}
    makers: dict[int, tuple[int, int, str]] = {}
    for position, call in enumerate(witness.calls):
        for number, size in call.sizes.items():
            makers[number] = (size, position, call.name)
        for number in call.touched:
            last[number] = position
    return [(size, first, last[number], name) for number, (size, first, name) in makers.items()]


def spans_of_graph(graph: Graph) -> list[tuple[int, int, int, str]]:
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for position in range(len(graph.ops)):
        for value in graph.ops.writes[position] + graph.ops.reads[position]:
            buffer = graph.values.buffer[value]
            if value in graph.ops.reads[position] or buffer not in first:
                last[buffer] = position
            first.setdefault(buffer, position)
    return [
        (graph.buffers.bytes[b], first[b], last[b], graph.ops.target[first[b]])
        for b in range(len(graph.buffers))
        if graph.buffers.role[b] in ("activation", "gradient")
    ]


@pytest.mark.parametrize(("name", "mode"), ALL)
def test_ops_are_the_calls_of_a_real_run(name: str, mode: str) -> None:
    graph = graph_of(name, mode)
    witness, _ = witness_run(name, mode)
    assert list(graph.ops.target) == [call.name for call in witness.calls]


@pytest.mark.parametrize(("name", "mode"), ALL)
def test_storages_have_bytes_and_uses_of_a_real_run(name: str, mode: str) -> None:
    graph = graph_of(name, mode)
    witness, before = witness_run(name, mode)
    assert spans_of_graph(graph) == spans_of_run(witness, before)


@pytest.mark.parametrize(("name", "mode"), ALL)
def test_ops_write_what_a_real_run_changes_in_place(name: str, mode: str) -> None:
    graph = graph_of(name, mode)
    witness, before = witness_run(name, mode)
    for position, call in enumerate(witness.calls):
        written = {graph.values.buffer[v] for v in graph.ops.writes[position]}
        assert {number for number in call.changed if number < before} <= written, (position, call.name)
        assert all(graph.buffers.role[b] not in ("parameter", "constant") for b in written)


@pytest.mark.parametrize(("name", "mode"), ALL)
def test_graphs_are_legal_and_their_plans_sound(name: str, mode: str) -> None:
    graph = graph_of(name, mode)
    require_legal(graph)
    token = token_from_seed(1)
    for preset in ("train_full", "inference", "remat_enabled"):
        plan = prepare_memory(graph, mode=mode, preset=preset, token=token, arenas=default_arenas(alignment=64))
        judge(graph, plan, token=token)
