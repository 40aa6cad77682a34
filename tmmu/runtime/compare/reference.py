"""The same program in plain memory: one storage for each buffer, each call as it was captured. Nothing of a plan."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tmmu.ir.program import Program, ValueRef
from tmmu.runtime.execute.inputs import input_specs
from tmmu.runtime.kernels.code import leaves
from tmmu.runtime.weights.load import Weight, check_weights, load_into


class ReferenceExecutor:
    """A program's memory, and what is in it after ``run``: what a planned run is held against."""

    def __init__(self, program: Program, weights: Mapping[str, Weight]) -> None:
        self.program = program
        self._device = torch.device(program.graph.target)
        sizes = program.graph.buffers.bytes
        self._storages = [torch.zeros(size, dtype=torch.uint8, device=self._device) for size in sizes]
        for buffer, source in check_weights(program.graph, weights).items():
            load_into(source, self._storages[buffer])

    def run(self, order: Sequence[int], inputs: Mapping[str, torch.Tensor]) -> None:
        """The ops of ``order``, on copies of the inputs by name."""
        with torch.no_grad():
            self.load(inputs)
            for op in order:
                self.step(op)

    def load(self, inputs: Mapping[str, torch.Tensor]) -> None:
        """Copies of the inputs by name are in place."""
        for spec in input_specs(self.program.graph, self._device):
            self.value(spec.value).copy_(inputs[spec.name])

    def step(self, op: int) -> None:
        """What this op writes is written."""
        call = self.program.calls[op]
        result = call.operator(
            *self._bind_argument(call.args), **{name: self._bind_argument(arg) for name, arg in call.kwargs}
        )
        for leaf, value in zip(leaves(result), call.results, strict=True):
            if value is not None:
                self._copy_result(leaf, self.value(value))

    def value(self, value: int) -> torch.Tensor:
        """The window of a value on its buffer."""
        values = self.program.graph.values
        dtype = getattr(torch, values.dtype[value])
        offset = values.offset[value] // dtype.itemsize
        store = self._storages[values.buffer[value]].untyped_storage()
        return torch.empty(0, dtype=dtype, device=self._device).set_(
            store, offset, values.shape[value], values.stride[value]
        )

    def bytes(self, buffer: int) -> torch.Tensor:
        """The whole buffer as ``uint8``."""
        return self._storages[buffer]

    def _copy_result(self, leaf: torch.Tensor, target: torch.Tensor) -> None:
        if leaf is None:
            return  # a real kernel may leave out what nobody asked for
        if leaf.data_ptr() != target.data_ptr() or leaf.stride() != target.stride():
            still = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in target.stride())
            target[still].copy_(leaf[still])

    def _bind_argument(self, argument: Any) -> Any:
        if isinstance(argument, ValueRef):
            return self.value(argument.value)
        if isinstance(argument, (list, tuple)) and not isinstance(argument, torch.Size):
            items = [self._bind_argument(item) for item in argument]
            return items if isinstance(argument, list) else tuple(items)
        return argument
