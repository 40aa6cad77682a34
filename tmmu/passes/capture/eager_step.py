"""A step of the user's on real tensors, run by PyTorch: what a planned step begins from and is compared with.

The file is loaded once more, with memory of its own on the device, and makes model and optimizers as it always does.
What ``torch.compile`` wraps runs as it is, since that is what is planned.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tmmu.errors import UnsupportedOp
from tmmu.passes.capture import targets
from tmmu.passes.capture.activities import Activity
from tmmu.passes.capture.eager_model import inputs_of, user_code
from tmmu.passes.capture.fake.compiled import compiled_as_written
from tmmu.passes.capture.fake.process_state import default_device_set
from tmmu.passes.capture.ranks.reducer import end_first_step, reducers_in_python
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.training.reach import Reach, numbers_in, reach_of
from tmmu.passes.capture.tree import named_tensors
from tmmu.torch_private import cpp_address


def _place_in_storage(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Shape, stride and offset: where it lies in its storage, in which a step may cut it."""
    return tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset())


class EagerStep:
    """The step of a request; ``seed`` decides what the file draws while it is loaded.

    ``updates`` counts how often an optimizer's ``step`` was called in the last run.
    """

    def __init__(self, request: CaptureRequest, seed: int) -> None:
        self._request = request
        self.updates = 0
        with user_code(request, Activity.BUILDING), torch.device(request.device), reducers_in_python():
            torch.manual_seed(seed)
            self._workload = targets.load(request, None)
            self._default_device = default_device_set()
        self._inputs = inputs_of(self._workload)
        self._places = {name: _place_in_storage(tensor) for name, tensor in self._inputs.items()}
        self._returned: dict[str, Any] = {}

    @property
    def input_names(self) -> tuple[str, ...]:
        """The inputs in a graph's order, each window once."""
        return tuple(self._inputs)

    def run(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """One step on these values of its inputs; the tensors that it returns, by path."""
        self.load({}, inputs)
        with user_code(self._request), self._updates_counted():
            results = self.step()
        for module in self.reach().modules.values():
            end_first_step(module)
        self._returned = numbers_in(results, "output")
        return {name: tensor.detach() for name, tensor in named_tensors(results)}

    def load(self, weights: Mapping[str, torch.Tensor], inputs: Mapping[str, torch.Tensor]) -> None:
        """Give its inputs these values; its weights it has made itself."""
        del weights
        with torch.no_grad():
            for name, tensor in self._inputs.items():
                if any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
                    raise UnsupportedOp(
                        f"input {name} is expanded, and a checked run draws each element",
                        fix="call contiguous() where the batch is made",
                    )
                if _place_in_storage(tensor) != self._places[name]:
                    tensor.as_strided_(*self._places[name])
                tensor.copy_(inputs[name])
                tensor.grad = None  # as of another batch

    def step(self) -> Any:
        """One step, as its author would call it; what it returns."""
        device = nullcontext() if self._default_device is None else self._default_device
        with compiled_as_written(), device:
            return self._workload.run(*self._workload.args, **self._workload.kwargs)

    @property
    def resident_bytes(self) -> int:
        """Bytes of all that the step reaches, and of its inputs, each storage once."""
        tensors = (*self.reach().tensors.values(), *self._inputs.values())
        return sum({cpp_address(t.untyped_storage()): t.untyped_storage().nbytes() for t in tensors}.values())

    def reach(self) -> Reach:
        """All that the step reaches now."""
        return reach_of(self._workload.run)

    @property
    def returned_numbers(self) -> dict[str, Any]:
        """Python's numbers that the last run returned, by path."""
        return self._returned

    @contextmanager
    def _updates_counted(self) -> Iterator[None]:
        self.updates = 0

        def count(*_: Any) -> None:
            self.updates += 1

        hook = register_optimizer_step_pre_hook(count)
        try:
            yield
        finally:
            hook.remove()
