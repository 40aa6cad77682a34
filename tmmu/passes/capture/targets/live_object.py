"""A model or step that is there as Python objects: its twin on fake tensors, and nothing of the original changed.

The twin is a deep copy in which every tensor is a fake one of the same form; tensors that share a storage share one
there. Of a function the closure and the globals that it names are copied too, in the same copy: an optimizer holds the
twin's parameters. What cannot be copied stays what it is, and belongs to the outside.
"""

import copy
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from tmmu.errors import CaptureFailed, InvalidConfig, UnsupportedOp
from tmmu.passes.capture.fake.devices import note_gpu
from tmmu.passes.capture.ranks.layouts import DISTRIBUTED_TENSORS
from tmmu.passes.capture.ranks.process_group import stand_ins_by_identity
from tmmu.passes.capture.record.unseen_tensors import is_subclass
from tmmu.passes.capture.replace import replace_attribute
from tmmu.passes.capture.targets.python_object import required_parameters, spread_batch
from tmmu.passes.capture.training.reach import global_names, is_outside
from tmmu.passes.capture.workload import Workload
from tmmu.torch_private import cpp_address

_KNOWN_ELEMENTS: Final = 1 << 16
"""So many elements at most has a tensor whose values control flow may look at."""


def source_folder_of(target: Any) -> str:
    """The folder of the file that defines a model's class, or a function; empty where there is none."""
    defined = target if inspect.isroutine(target) else type(target)
    try:
        return str(Path(inspect.getfile(defined)).resolve().parent)
    except (TypeError, OSError):
        return ""


def live_workload(target: Any, inputs: Any, *, is_step: bool) -> Workload:
    """The workload of the twin. Called with the fake mode on, under a recorder that knows small constants' values."""
    return workload_of_copies(target, inputs, Twins(), is_step=is_step)


def workload_of_maker(maker: Any, inputs: Any) -> Workload:
    """The workload of the module that a copy of a function makes of copies of all that it reaches.

    ``CAPTURE_FAILED`` for a function that makes no module.
    """
    twins = Twins()
    twins.memo.update(stand_ins_by_identity())
    with _copies_by(twins):
        make = _function_twin(maker, twins.memo)
        args, kwargs = _arguments(copy.deepcopy(inputs, twins.memo))
    run = make()
    if not isinstance(run, nn.Module):
        raise CaptureFailed(
            f"{getattr(maker, '__name__', 'the function')} makes a {type(run).__name__}, no module",
            fix="return the model; a step of one rank is planned from a file: tmmu plan FILE.py:step --world N",
        )
    return Workload(
        name=getattr(maker, "__name__", type(run).__name__),
        folder=source_folder_of(maker),
        run=run,
        module=run,
        args=args,
        kwargs=kwargs,
        gives_values=True,
    )


def workload_of_copies(target: Any, inputs: Any, twins: "Twins", *, is_step: bool) -> Workload:
    """The workload of a deep copy of all that is reached, its tensors by ``twins``."""
    if isinstance(target, nn.Module) and any(map(is_lazy, target.parameters())):
        raise UnsupportedOp("a lazy parameter has no shape yet", fix="run the model once on an input")
    if isinstance(target, nn.Module):
        _require_whole(target)
    with _copies_by(twins):
        run = _function_twin(target, twins.memo) if is_step else copy.deepcopy(target, twins.memo)
        batch = copy.deepcopy(inputs, twins.memo)
    args, kwargs = spread_batch(batch, required_parameters(run)) if is_step and batch is not None else _arguments(batch)
    return Workload(
        name=getattr(target, "__name__", type(target).__name__),
        folder=source_folder_of(target),
        run=run,
        module=run if isinstance(run, nn.Module) else None,
        args=args,
        kwargs=kwargs,
        gives_values=True,
    )


def _require_whole(module: nn.Module) -> None:
    """``UNSUPPORTED_OP`` for a module that is sharded already: of its copy, torch would not know what it shares."""
    distributed = sys.modules.get(DISTRIBUTED_TENSORS)
    if distributed is None:
        return
    for name, parameter in module.named_parameters():
        if isinstance(parameter, distributed.DTensor):
            raise UnsupportedOp(
                f"{name} is sharded already, and a live model is traced as a copy",
                fix="give tmmu.plan the function that makes it, with world, or its file to tmmu run --world",
                name=name,
            )


@contextmanager
def _copies_by(twins: "Twins") -> Iterator[None]:
    """Block in which a deep copy has twins of tensors, and optimizers with all their attributes."""
    with (
        replace_attribute(torch.Tensor, "__deepcopy__", twins.copy_tensor),
        replace_attribute(nn.Parameter, "__deepcopy__", twins.copy_tensor),
    ):
        torch.optim.Optimizer.__deepcopy__ = _copy_optimizer  # type: ignore[attr-defined]
        try:
            yield
        finally:
            del torch.optim.Optimizer.__deepcopy__  # type: ignore[attr-defined]


def _copy_optimizer(optimizer: torch.optim.Optimizer, memo: dict[int, Any]) -> torch.optim.Optimizer:
    """With the attributes that its pickled form leaves out; without the ``step`` that a schedule put before its own."""
    twin = memo[id(optimizer)] = type(optimizer).__new__(type(optimizer))
    attributes = {name: value for name, value in vars(optimizer).items() if name != "step"}
    twin.__dict__.update(copy.deepcopy(attributes, memo))
    return twin


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """One tensor, a tuple of positional arguments, a dict of keyword arguments; of anything else one argument."""
    if inputs is None:
        return (), {}
    if isinstance(inputs, tuple):
        return inputs, {}
    if isinstance(inputs, Mapping) and all(isinstance(name, str) for name in inputs):
        return (), dict(inputs)
    return (inputs,), {}


class Twins:
    """The fake tensor of each tensor, and of each storage the first one."""

    def __init__(self) -> None:
        self.memo: dict[int, Any] = {}
        self._by_storage: dict[int, torch.Tensor] = {}

    @property
    def copy_tensor(self) -> Callable[..., torch.Tensor]:
        """What stands for ``Tensor.__deepcopy__``."""

        def copy_of(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
            if id(tensor) not in memo:
                memo[id(tensor)] = self._twin(tensor, memo)
            return memo[id(tensor)]  # type: ignore[no-any-return]

        return copy_of

    def _twin(self, tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
        if is_subclass(type(tensor)) or tensor.layout is not torch.strided:
            raise UnsupportedOp(
                f"a tensor of class {type(tensor).__name__} and layout {tensor.layout} is part of the model",
                fix="plan the model of plain tensors",
            )
        if tensor.device.type == "cuda":
            note_gpu()
        with torch.no_grad():
            twin = self._data(tensor)
        if isinstance(tensor, nn.Parameter):
            twin = nn.Parameter(twin, requires_grad=tensor.requires_grad)
        elif tensor.is_leaf:
            twin.requires_grad_(tensor.requires_grad)
        if tensor.is_leaf and tensor.grad is not None:
            twin.grad = copy.deepcopy(tensor.grad, memo)
        return twin

    def _data(self, tensor: torch.Tensor) -> torch.Tensor:
        address = cpp_address(tensor.untyped_storage())
        if address not in self._by_storage:
            self._by_storage[address] = self.first_on_storage(tensor)
            return self._by_storage[address]
        return self.window_on(self._by_storage[address], tensor)

    def first_on_storage(self, tensor: torch.Tensor) -> torch.Tensor:
        """The twin of the first tensor of its storage."""
        storage_elements = tensor.untyped_storage().nbytes() // max(tensor.element_size(), 1)
        data: torch.Tensor
        if _has_known_value(tensor) and storage_elements == tensor.numel():
            data = torch.ops.aten.lift_fresh.default(tensor.detach().clone())  # known, and nobody's
        elif tensor.is_contiguous() and storage_elements == tensor.numel():
            data = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        else:
            data = _window_on(torch.empty(storage_elements, dtype=tensor.dtype), tensor)
        return data

    def window_on(self, first: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """The twin of another tensor of the storage of ``first``."""
        return _window_on(first, tensor)


def _has_known_value(tensor: torch.Tensor) -> bool:
    is_real = type(tensor) is torch.Tensor and tensor.device.type == "cpu" and not tensor.requires_grad
    return is_real and 0 < tensor.numel() <= _KNOWN_ELEMENTS and tensor.is_contiguous()


def _window_on(first: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """The same window as ``tensor`` has, on the storage of ``first``."""
    if first.dtype != tensor.dtype:
        raise UnsupportedOp("two tensors of unlike dtypes share their memory", fix="give each memory of its own")
    window: torch.Tensor = first.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return window.detach()


def _function_twin(function: Any, memo: dict[int, Any]) -> Any:
    """A function that runs the same code on twins of all that it reaches by name."""
    if not callable(function):
        raise InvalidConfig(f"a {type(function).__name__} is no step", fix="give a function that takes a batch")
    if id(function) in memo:
        return memo[id(function)]
    if isinstance(function, types.MethodType):
        return types.MethodType(_function_twin(function.__func__, memo), _copied(function.__self__, memo))
    if isinstance(function, partial):
        keywords = {key: _reached(value, memo) for key, value in function.keywords.items()}
        arguments = [_reached(value, memo) for value in function.args]
        return partial(
            function.func if isinstance(function.func, type) else _function_twin(function.func, memo),
            *arguments,
            **keywords,
        )
    if isinstance(function.__call__, types.MethodType):
        return _function_twin(function.__call__, memo)
    if not isinstance(function, types.FunctionType) or is_outside(function):
        return _copied(function, memo)
    names = global_names(function.__code__) & set(function.__globals__)
    namespace = dict(function.__globals__)
    cells = tuple(types.CellType() for _ in function.__closure__ or ())
    twin = types.FunctionType(function.__code__, namespace, function.__name__, function.__defaults__, cells)
    twin.__kwdefaults__ = function.__kwdefaults__
    memo[id(function)] = twin
    for name in sorted(names):
        namespace[name] = _reached(function.__globals__[name], memo)
    for cell, original in zip(cells, function.__closure__ or (), strict=True):
        cell.cell_contents = _reached(original.cell_contents, memo)
    return twin


def _reached(value: Any, memo: dict[int, Any]) -> Any:
    if isinstance(value, (types.ModuleType, type)):
        return value
    return _function_twin(value, memo) if inspect.isroutine(value) else _copied(value, memo)


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    """The copy, or the value itself where Python cannot copy it (a file, a lock, an iterator)."""
    try:
        return copy.deepcopy(value, memo)
    except (TypeError, NotImplementedError, AttributeError):
        return value
