"""The model itself, made of real tensors and run as PyTorch runs it: what a plan is held against and timed beside."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tmmu.errors import InvalidConfig
from tmmu.passes.capture import targets
from tmmu.passes.capture.request import CaptureRequest
from tmmu.passes.capture.trace import importable, inputs_by_name, translated
from tmmu.passes.capture.training import train_step
from tmmu.passes.capture.tree import named_tensors
from tmmu.passes.capture.workload import Workload


class Original:
    """The workload of a request, with memory of its own on the device. ``names`` are its inputs, in a graph's order."""

    def __init__(self, request: CaptureRequest) -> None:
        self._request = request
        self._folder = targets.folder_of(request.target)
        with self._world(), torch.device(request.device):
            self._workload = _made(request)
        self._weights = _weights_of(self._workload, training=request.mode != "inference")
        self._optimizer = _Optimizer()
        self._inputs = _inputs_of(self._workload)
        self._start = {name: _bytes(tensor).clone() for name, tensor in self._weights.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """The inputs, each storage once."""
        return tuple(self._inputs)

    def load(self, weights: Mapping[str, torch.Tensor], inputs: Mapping[str, torch.Tensor]) -> None:
        """Weights by name and inputs by name hold these values; state is as it was made.

        A weight has the shape that it has in the model, or is flat: all elements of its storage.
        """
        self._optimizer.state.clear()
        with torch.no_grad():
            for name, tensor in self._weights.items():
                _bytes(tensor).copy_(self._start[name])
            for name, tensor in self._weights.items():  # after all are as they were: some may share a storage
                if name in weights:
                    _put(name, tensor, weights[name])
            for name, tensor in self._inputs.items():
                tensor.copy_(inputs[name])

    def run(self) -> list[torch.Tensor]:
        """What one step returns, windows that coincide once, as a graph lists them."""
        with self._world():
            found = [tensor.detach() for _, tensor in named_tensors(self.step())]
        return list({_window(tensor): tensor for tensor in found}.values())

    def step(self) -> Any:
        """One step, as the model's author would call it."""
        work = self._workload
        if self._request.mode == "inference":
            with torch.no_grad():
                return work.run(*work.args, **work.kwargs)
        found = train_step(work, self._optimizer, optimizer=self._request.optimizer)
        for tensor in (*self._weights.values(), *self._inputs.values()):
            tensor.grad = None  # the caller has them; the next step begins without
        return found

    @property
    def states(self) -> dict[str, torch.Tensor]:
        """What it keeps between steps, by a graph's names."""
        return self._weights | self._optimizer.state

    @property
    def held(self) -> int:
        """Bytes of weights, state and inputs, each storage once."""
        tensors = (*self.states.values(), *self._inputs.values())
        return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())

    def compiled(self) -> Callable[[], Any]:
        """The same step, its model compiled by ``torch.compile``; loss, gradients and update as they are."""
        other = copy.copy(self)
        other._workload = replace(self._workload, run=torch.compile(self._workload.run))
        return other.step

    @contextmanager
    def _world(self) -> Iterator[None]:
        with translated(self._folder), importable(self._folder):
            yield


class _Optimizer:
    """What a training step tells a recorder, when nothing records: its state is kept here, and begins at zero."""

    def __init__(self) -> None:
        self.state: dict[str, torch.Tensor] = {}

    def in_stage(self, stage: str) -> Any:
        del stage
        return nullcontext()

    def paused(self) -> Any:
        return nullcontext()

    def kept(self, tensor: torch.Tensor, *, name: str) -> torch.Tensor:
        """The one that is kept under this name."""
        if name not in self.state:
            self.state[name] = tensor.zero_()
        return self.state[name]


def stored_weights(target: str) -> dict[str, torch.Tensor]:
    """What an exported program holds, by the names that a graph gives it; nothing for other targets."""
    if not target.endswith(".pt2"):
        return {}
    exported = torch.export.load(Path(target))
    return {**exported.state_dict, **{n: t for n, t in exported.constants.items() if isinstance(t, torch.Tensor)}}


def _made(request: CaptureRequest) -> Workload:
    if not request.target.endswith(".pt2"):
        return targets.load(request, None)
    exported = torch.export.load(Path(request.target))
    module = exported.module()
    args, given = exported.example_inputs or ((), {})
    return Workload(name="exported", folder="", run=module, module=module, args=tuple(args), kwargs=dict(given))


def _weights_of(work: Workload, *, training: bool) -> dict[str, torch.Tensor]:
    found = {}
    if work.module is not None:
        if work.module.training != training and not isinstance(work.module, torch.fx.GraphModule):
            work.module.train(training)
        found = dict((*work.module.named_parameters(), *work.module.named_buffers()))
    return found | {entry.name: entry.tensor for entry in work.owned}


def _inputs_of(work: Workload) -> dict[str, torch.Tensor]:
    owned = {id(entry.tensor) for entry in work.owned}
    found: dict[str, torch.Tensor] = {}
    seen: set[tuple[Any, ...]] = set()
    for name, tensor in named_tensors(inputs_by_name(work)):
        window = _window(tensor)
        if id(tensor) not in owned and window not in seen:
            seen.add(window)
            found[name if name not in found else f"input_{len(found)}"] = tensor
    return found


def _window(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What a graph tells tensors apart by. Addresses do not: all that is empty lies at 0."""
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    storage = tensor.detach().untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (storage.nbytes(),), (1,))


def _put(name: str, tensor: torch.Tensor, value: torch.Tensor) -> None:
    """The storage as it lies in memory where the value is that, flat or in the same window; else element by element."""
    if tensor.is_complex() and not value.is_complex() and value.dim():
        value = torch.view_as_complex(value)
    whole, image = _bytes(tensor), _bytes(value)
    alike = _window(value)[1:] == _window(tensor)[1:]
    if image.numel() == whole.numel() and (alike or (value.dim() == 1 and value.shape != tensor.shape)):
        whole.copy_(image)
    elif value.shape == tensor.shape:
        tensor.copy_(value)
    else:
        raise InvalidConfig(
            f"{name} has shape {list(value.shape)}, and {list(tensor.shape)} in the model",
            fix="give the weights of this model",
            name=name,
        )
