"""The calls beside a graph run the model: in plain memory, value by value, they give what the module gives."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.unit.passes import models
from tmmu.ir.program import Program, ValueRef
from tmmu.passes.capture.request import CaptureRequest, no_progress
from tmmu.passes.capture.trace import fake_environment, trace
from tmmu.passes.capture.workload import Workload
from tmmu.passes.pipeline import lower_program


def program_of(make: Callable[[], torch.nn.Module], *shapes: tuple[tuple[int, ...], torch.dtype]) -> Program:
    with fake_environment("cpu"):
        module = make()
        inputs = tuple(torch.empty(shape, dtype=dtype) for shape, dtype in shapes)
        work = Workload(name="m", folder="", run=module, module=module, args=inputs)
        return lower_program(trace(work, CaptureRequest(model="m", device="cpu"), no_progress))


class Memory:
    """One plain storage a buffer; a value is a window on it."""

    def __init__(self, program: Program) -> None:
        graph = program.graph
        self.graph = graph
        self.stores = [torch.zeros(max(size, 1), dtype=torch.uint8).untyped_storage() for size in graph.buffers.bytes]

    def tensor(self, value: int) -> torch.Tensor:
        values = self.graph.values
        dtype = getattr(torch, values.dtype[value])
        empty = torch.empty(0, dtype=dtype)
        offset = values.offset[value] // dtype.itemsize
        return empty.set_(self.stores[values.buffer[value]], offset, values.shape[value], values.stride[value])

    def bound(self, argument: Any) -> Any:
        if isinstance(argument, ValueRef):
            return self.tensor(argument.value)
        if isinstance(argument, (list, tuple)):
            return type(argument)(self.bound(item) for item in argument)
        return argument

    def run(self, program: Program) -> list[torch.Tensor]:
        for call in program.calls:
            result = call.operator(*self.bound(call.args), **{k: self.bound(v) for k, v in call.kwargs})
            leaves = result if isinstance(result, (tuple, list)) else [result]
            for leaf, value in zip(leaves, call.results, strict=True):
                if value is not None:
                    self.tensor(value).copy_(leaf)
        return [self.tensor(value) for value in self.graph.outputs]


CASES = {
    "decoder": (models.Decoder, [((2, 6), torch.int64)]),
    "convolutional": (models.Convolutional, [((2, 3, 8, 8), torch.float32)]),
    "cached": (models.Cached, [((1, 16), torch.float32)]),
    "recurrent": (models.Recurrent, [((2, 5, 8), torch.float32)]),
    "odd": (models.ViewsAndWrites, [((3, 4), torch.float32), ((3, 2), torch.float32)]),
}


@pytest.mark.parametrize("name", CASES)
def test_calls_compute_what_the_module_computes(name: str) -> None:
    make, shapes = CASES[name]
    torch.manual_seed(0)
    real = make().eval()
    inputs = [
        torch.rand(shape).to(dtype) if dtype.is_floating_point else torch.ones(shape, dtype=dtype)
        for shape, dtype in shapes
    ]
    program = program_of(make, *shapes)
    memory = Memory(program)
    weights = dict(real.named_parameters()) | dict(real.named_buffers())
    for buffer, label in enumerate(program.graph.notes.buffers):
        if label in weights:
            source = weights[label].detach().contiguous().view(-1).view(torch.uint8)
            torch.empty(0, dtype=torch.uint8).set_(memory.stores[buffer], 0, source.shape, (1,)).copy_(source)
    for value, given in zip(program.graph.inputs, inputs, strict=True):
        memory.tensor(value).copy_(given)
    expected: list[torch.Tensor] = []
    with torch.no_grad():
        collect(real(*inputs), expected)
        found = memory.run(program)
    assert all(any(torch.equal(f, e) for f in found) for e in expected)


def collect(value: Any, into: list[torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        into.append(value)
    elif isinstance(value, dict):
        collect(list(value.values()), into)
    elif isinstance(value, (list, tuple)):
        for item in value:
            collect(item, into)


def test_calls_stand_beside_the_ops_of_the_same_graph() -> None:
    with fake_environment("cpu"):
        model = models.Decoder()
        work = Workload(name="m", folder="", run=model, module=model, args=(torch.empty(1, 4, dtype=torch.int64),))
        traced = trace(work, CaptureRequest(model="m", device="cpu"), no_progress)
    program = lower_program(traced)
    assert [str(call.operator) for call in program.calls] == list(program.graph.ops.target)
