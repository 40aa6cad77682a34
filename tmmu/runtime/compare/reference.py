"""Runs a program without a plan: a storage of its own for each buffer, each operator as it was captured."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tmmu.ir.program import Call, Program, ValueRef, is_formula
from tmmu.kernel_switches import under_switches
from tmmu.runtime.execute.executor import CALL_ERRORS, call_failure
from tmmu.runtime.execute.inputs import fill_input, input_specs, own_window
from tmmu.runtime.kernels.code import leaves, number_of, wait_for
from tmmu.runtime.kernels.collectives import (
    WAIT,
    awaited_values,
    is_awaited,
    is_between_ranks,
    is_message,
    on_running_groups,
)
from tmmu.runtime.memory.slab import with_lazy_bits
from tmmu.runtime.weights.load import Weight, check_weights, load_into
from tmmu.torch_private import GRAD_MODE_RESULTS


class ReferenceExecutor:
    """What a planned run is compared with. Takes memory for all buffers at once, and shares no code with steps."""

    def __init__(self, program: Program, weights: Mapping[str, Weight]) -> None:
        self.program = on_running_groups(program)
        self._awaited = awaited_values(self.program)
        self._under_way: dict[int, list[Any]] = {}
        self._device = torch.device(program.graph.target)
        sizes = program.graph.buffers.bytes
        self._storages = [torch.zeros(size, dtype=torch.uint8, device=self._device) for size in sizes]
        for buffer, source in check_weights(program.graph, weights).items():
            load_into(source, self._storages[buffer])

    def run(self, order: Sequence[int], inputs: Mapping[str, torch.Tensor]) -> None:
        """Runs the ops of ``order``, on copies of the inputs by name."""
        with torch.no_grad():
            self.load(inputs)
            for op in order:
                self.step(op)

    def load(self, inputs: Mapping[str, torch.Tensor]) -> None:
        """Copies the inputs, by name, into their buffers."""
        for spec in input_specs(self.program.graph, self._device):
            fill_input(spec, own_window(self.value(spec.value)), inputs[spec.name])

    def step(self, op: int) -> None:
        """Runs one op; ``INVALID_CONFIG`` that names it where its call raises."""
        call = self.program.calls[op]
        try:
            kwargs = {name: self._bind_argument(argument) for name, argument in call.kwargs}
            kept = GRAD_MODE_RESULTS.get(call.operator)
            needs_gradients = kept is not None and call.results[kept] is not None
            switches = under_switches(call.switches, self._device.type)
            with torch.set_grad_enabled(needs_gradients), switches:
                results = leaves(call.operator(*self._bind_argument(call.args), **kwargs))
                if is_between_ranks(call.operator):
                    self._wait_where_due(call, results)
        except CALL_ERRORS as error:
            raise call_failure(self.program.graph, op, error) from error
        for result, value in zip(results, call.results, strict=True):
            if value is not None:
                self._copy_result(result, self.value(value))

    def _wait_where_due(self, call: Call, results: Sequence[Any]) -> None:
        """A message is under way until the program waits for its tensor; any other call is waited for at once."""
        buffer_of = self.program.graph.values.buffer
        if is_message(call):
            if not is_awaited(call, self._awaited):
                wait_for(results)
                return
            for tensor in call.args[0]:
                self._under_way.setdefault(buffer_of[tensor.value], []).extend(results)
        elif str(call.operator) == WAIT and is_awaited(call, self._awaited):
            wait_for(self._under_way.pop(buffer_of[call.args[0].value], ()))
        else:
            wait_for(results)

    def value(self, value: int) -> torch.Tensor:
        """A new tensor of a value, on its buffer's storage."""
        values = self.program.graph.values
        dtype = getattr(torch, values.dtype[value])
        offset = values.offset[value] // dtype.itemsize
        storage = self._storages[values.buffer[value]].untyped_storage()
        empty = torch.empty(0, dtype=dtype, device=self._device)
        return empty.set_(storage, offset, values.shape[value], values.stride[value])

    def bytes(self, buffer: int) -> torch.Tensor:
        """The whole buffer as ``uint8``."""
        return self._storages[buffer]

    def _copy_result(self, result: torch.Tensor | None, target: torch.Tensor) -> None:
        # A real kernel may return no tensor for a result that its mask leaves out, where a fake one returned a tensor.
        if result is None:
            return
        if result.data_ptr() != target.data_ptr() or result.stride() != target.stride():
            first = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in target.stride())
            target[first].copy_(result[first])

    def _bind_argument(self, argument: Any) -> Any:
        if isinstance(argument, ValueRef):
            return with_lazy_bits(self.value(argument.value), conj=argument.conj, neg=argument.neg)
        if isinstance(argument, (list, tuple)) and not isinstance(argument, torch.Size):
            items = [self._bind_argument(item) for item in argument]
            if is_formula(argument):
                return number_of(items)
            return items if isinstance(argument, list) else tuple(items)
        return argument
