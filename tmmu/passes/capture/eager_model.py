"""The model itself, made of real tensors and run as PyTorch runs it: what a planned run is compared and timed with."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tmmu.errors import InvalidConfig
from tmmu.passes.capture import targets
from tmmu.passes.capture.activities import Activity
from tmmu.passes.capture.failures.translate import translate_errors
from tmmu.passes.capture.fake.process_state import default_device_set, process_state_restored
from tmmu.passes.capture.imports import importable_from
from tmmu.passes.capture.ranks.sharding import begin_shards
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.training.losses import supervision_name
from tmmu.passes.capture.training.model_step import StepRecorder, evaluate, train_step
from tmmu.passes.capture.tree import named_tensors, plain_tensors
from tmmu.passes.capture.workload import Workload, inputs_by_name
from tmmu.torch_private import cpp_address


@contextmanager
def user_code(request: CaptureRequest, activity: Activity = Activity.FORWARD) -> Iterator[None]:
    """Block in which the code of a request's target runs on real tensors: its imports are found, its lines named."""
    with (
        process_state_restored(),
        translate_errors(targets.source_folder(request.model), activity),
        importable_from(targets.import_folder(request.model)),
    ):
        yield


class EagerModel:
    """The workload of a request, with memory of its own on the device."""

    def __init__(self, request: CaptureRequest) -> None:
        self._request = request
        with user_code(request, Activity.BUILDING), torch.device(request.device):
            self._workload = _load_workload(request)
            self._default_device = default_device_set()
        if self._workload.module is not None:
            begin_shards(self._workload.module)
        self._weights = _weights_of(self._workload, training=request.mode != "inference")
        self._keeper = _StepKeeper()
        self._inputs = inputs_of(self._workload)
        self._initial_bytes = {name: _storage_bytes(tensor).clone() for name, tensor in self._weights.items()}

    @property
    def input_names(self) -> tuple[str, ...]:
        """The inputs in a graph's order, each window once; the supervision of a loss comes last."""
        name = supervision_name(self._request.loss) if self._request.mode != "inference" else None
        return (*self._inputs, *([] if name is None else [_supervision_key(name, self._inputs)]))

    def load(self, weights: Mapping[str, torch.Tensor], inputs: Mapping[str, torch.Tensor]) -> None:
        """Give weights and inputs these values, by name; all else is as the model was built.

        A weight has the shape that it has in the model, or is flat: all elements of its storage.
        """
        self._keeper.forget()
        with torch.no_grad():
            for name, tensor in self._weights.items():
                _storage_bytes(tensor).copy_(self._initial_bytes[name])
            # Only now that all are as they were: some may share a storage.
            for name, tensor in self._weights.items():
                if name in weights:
                    _copy_value(name, tensor, weights[name])
            for name, tensor in self._inputs.items():
                tensor.copy_(inputs[name])
            self._keeper.supervision = next(
                (inputs[n].clone() for n in self.input_names if n not in self._inputs), None
            )

    def run(self) -> list[torch.Tensor]:
        """What one step returns, windows that coincide once, as a graph lists them."""
        with user_code(self._request):
            results = [tensor.detach() for _, tensor in named_tensors(self.step())]
        return list({_window(tensor): tensor for tensor in results}.values())

    def step(self) -> Any:
        """One step, as the model's author would call it."""
        with nullcontext() if self._default_device is None else self._default_device:
            return self._step()

    def _step(self) -> Any:
        workload = self._workload
        if self._request.mode == "inference":
            return evaluate(workload, self._request)
        results = train_step(workload, self._keeper, self._request)
        owned = () if workload.module is None else workload.module.parameters()
        for tensor in (*owned, *self._weights.values(), *self._inputs.values()):
            tensor.grad = None  # the caller has them; the next step starts without
        return results

    @property
    def inputs(self) -> dict[str, torch.Tensor]:
        """The tensors that a step is called with, each window once."""
        return dict(self._inputs)

    @property
    def states(self) -> dict[str, torch.Tensor]:
        """What it keeps between steps, by the names of a graph's buffers."""
        return self._weights | self._keeper.state

    @property
    def resident_bytes(self) -> int:
        """Bytes of weights, state and inputs, each storage once."""
        supervision = [] if self._keeper.supervision is None else [self._keeper.supervision]
        tensors = (*self.states.values(), *self._inputs.values(), *supervision)
        return sum({cpp_address(t.untyped_storage()): t.untyped_storage().nbytes() for t in tensors}.values())

    def compile_step(self) -> Callable[[], Any]:
        """The same step, its model compiled by ``torch.compile``; loss, gradients and update as they are."""
        twin = copy.copy(self)
        twin._workload = replace(self._workload, run=torch.compile(self._workload.run))
        return twin.step


class _StepKeeper:
    """The recorder of a training step that is not recorded: it keeps supervision, the optimizer and its state.

    State is zero at first; so is what nobody gave. Only the first step makes them: later ones allocate and
    compute what the model's author would see.
    """

    def __init__(self) -> None:
        self.state: dict[str, torch.Tensor] = {}
        self.supervision: torch.Tensor | None = None
        self._optimizer: torch.optim.Optimizer | None = None

    def forget(self) -> None:
        """The next step is the first."""
        self.state.clear()
        self._optimizer = None

    def keep_optimizer(self, make: Callable[[], torch.optim.Optimizer]) -> torch.optim.Optimizer:
        """The one of the first step."""
        if self._optimizer is None:
            self._optimizer = make()
        return self._optimizer

    def keep_supervision(self, make: Callable[[], torch.Tensor], *, name: str) -> torch.Tensor:
        """The one that was loaded, or that of an earlier step."""
        del name
        if self.supervision is None:
            self.supervision = make()
        return self.supervision

    def in_stage(self, stage: str, *, module: str = "") -> Any:
        del stage, module
        return nullcontext()

    def make_state(self) -> Any:
        return nullcontext()

    def keep_state(self, tensor: torch.Tensor, *, name: str) -> torch.Tensor:
        """The tensor kept under this name, zero when it is new."""
        if name not in self.state:
            self.state[name] = tensor.zero_()
        return self.state[name]


def step_keeper() -> StepRecorder:
    """What keeps supervision, optimizer and state between training steps that are not recorded."""
    return _StepKeeper()


def _supervision_key(name: str, inputs: Mapping[str, torch.Tensor]) -> str:
    return name if name not in inputs else f"input_{len(inputs)}"


def stored_weights(request: CaptureRequest) -> dict[str, torch.Tensor]:
    """The weights in an exported program, by the names of a graph's buffers; none for other models."""
    if not request.model.endswith(".pt2"):
        return {}
    from tmmu.passes.capture.targets.exported import stored_tensors_of  # noqa: PLC0415 - torch's compiler

    return stored_tensors_of(request, Path(request.model))


def _load_workload(request: CaptureRequest) -> Workload:
    if not request.model.endswith(".pt2"):
        return targets.load(request, None)
    from tmmu.passes.capture.targets.exported import eager_exported  # noqa: PLC0415 - torch's compiler

    return eager_exported(request, Path(request.model))


def _weights_of(work: Workload, *, training: bool) -> dict[str, torch.Tensor]:
    weights = {}
    if work.module is not None:
        if work.module.training != training and not isinstance(work.module, torch.fx.GraphModule):
            work.module.train(training)
        owned = (*work.module.named_parameters(), *work.module.named_buffers())
        named = [pair for name, tensor in owned for pair in plain_tensors(name, tensor)]
        weights = {name: tensor for name, tensor in named if tensor.layout is torch.strided}  # no plan has the others
    return weights | {entry.name: entry.tensor for entry in work.owned}


def inputs_of(work: Workload) -> dict[str, torch.Tensor]:
    """The tensors that a workload is called with, by name, each window once."""
    owned = {id(entry.tensor) for entry in work.owned}
    inputs: dict[str, torch.Tensor] = {}
    windows: set[tuple[Any, ...]] = set()
    for name, tensor in named_tensors(inputs_by_name(work)):
        window = _window(tensor)
        if id(tensor) not in owned and window not in windows:
            windows.add(window)
            inputs[name if name not in inputs else f"input_{len(inputs)}"] = tensor
    return inputs


def _window(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What a graph tells tensors apart by. Addresses would not do: all empty tensors lie at 0."""
    layout = (tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
    return cpp_address(tensor.untyped_storage()), *layout, tensor.is_conj(), tensor.is_neg()


def _storage_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The whole storage as ``uint8[bytes]``."""
    storage = tensor.detach().untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (storage.nbytes(),), (1,))


def _copy_value(name: str, tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Copy bytes where the value has the memory of the whole storage, flat or in the same window; else elements."""
    if tensor.is_complex() and not value.is_complex() and value.dim():
        value = torch.view_as_complex(value)
    storage, source = _storage_bytes(tensor), _storage_bytes(value)
    same_window = _window(value)[1:] == _window(tensor)[1:]
    if source.numel() == storage.numel() and (same_window or (value.dim() == 1 and value.shape != tensor.shape)):
        storage.copy_(source)
    elif value.shape == tensor.shape:
        tensor.copy_(value)
    else:
        raise InvalidConfig(
            f"{name} has shape {list(value.shape)}, and {list(tensor.shape)} in the model",
            fix="give the weights of this model",
            name=name,
        )
