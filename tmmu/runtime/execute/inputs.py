"""Inputs of a call: by name, of the shape, dtype and device that the plan was made for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch

from tmmu.errors import InvalidConfig, UnsupportedOp
from tmmu.ir.graph import Graph
from tmmu.runtime.memory.allocated import freed, is_allocated, reach_bytes
from tmmu.torch_private import is_functorch_wrapped


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """One input: its value in the graph, and the shape, dtype and device of a tensor for it."""

    name: str
    value: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes(self) -> int:
        """Of its elements."""
        return prod(self.shape) * self.dtype.itemsize


def input_specs(graph: Graph, device: torch.device) -> tuple[InputSpec, ...]:
    """The inputs in the graph's order; one without a name of its own is ``input_N`` by its position."""
    taken: set[str] = set()
    buffers: set[int] = set()
    specs = []
    for position, value in enumerate(graph.inputs):
        buffer = graph.values.buffer[value]
        if buffer in buffers:
            raise UnsupportedOp("two inputs share their storage", fix="pass the whole, and take views in the model")
        name = graph.notes.buffers[buffer]
        name = name if name and name not in taken else f"input_{position}"
        taken.add(name)
        buffers.add(buffer)
        dtype = getattr(torch, graph.values.dtype[value])
        specs.append(InputSpec(name=name, value=value, shape=graph.values.shape[value], dtype=dtype, device=device))
    return tuple(specs)


def external_buffers(
    graph: Graph, external: Mapping[str, torch.Tensor], device: torch.device
) -> dict[int, torch.Tensor]:
    """By buffer, the callers' tensors of external inputs; ``INVALID_CONFIG`` for one that does not fit."""
    specs = {spec.name: spec for spec in input_specs(graph, device)}
    _require_names(external, tuple(specs))
    buffers: dict[int, torch.Tensor] = {}
    for name in external:
        spec = specs[name]
        tensor = _check_input(spec, external)
        if tensor.stride() != graph.values.stride[spec.value]:
            raise InvalidConfig(
                f"input {name} has strides {tensor.stride()}, and the plan is for {graph.values.stride[spec.value]}",
                fix="plan for this one",
                name=name,
            )
        buffers[graph.values.buffer[spec.value]] = tensor
    return buffers


def check_inputs(specs: Sequence[InputSpec], inputs: Mapping[str, object]) -> list[torch.Tensor]:
    """The tensors in the order of ``specs``; ``INVALID_CONFIG`` that names the first fault."""
    # One pass for the usual call, a dict with just these names; any other is looked at name by name.
    if type(inputs) is not dict or len(inputs) != len(specs) or any(spec.name not in inputs for spec in specs):
        _require_names(inputs, tuple(spec.name for spec in specs))
    return [_check_input(spec, inputs) for spec in specs]


def _require_names(inputs: object, names: Sequence[str]) -> None:
    """``INVALID_CONFIG`` unless ``inputs`` is a mapping from some of these names."""
    fix = f"the inputs are {', '.join(names)}" if names else "there are no inputs"
    if not isinstance(inputs, Mapping):
        raise InvalidConfig(f"the inputs are a {type(inputs).__name__}, not a mapping from names to tensors", fix=fix)
    for name in inputs:
        if not isinstance(name, str):
            raise InvalidConfig(f"the name of an input is a {type(name).__name__}, not text", fix=fix)
        if name not in names:
            raise InvalidConfig(f"no input is called {name!r}", fix=fix, name=name)


def _check_input(spec: InputSpec, inputs: Mapping[str, object]) -> torch.Tensor:
    if spec.name not in inputs:
        fix = f"give {spec.name}={_format_spec(spec)}"
        raise InvalidConfig(f"input {spec.name} is missing", fix=fix, name=spec.name)
    tensor = inputs[spec.name]
    if not isinstance(tensor, torch.Tensor) or not _is_dense_tensor(tensor):
        fault = f"input {spec.name} is no dense tensor ({type(tensor).__name__})"
        raise InvalidConfig(fault, fix=f"give {_format_spec(spec)}", name=spec.name)
    if tensor.shape != spec.shape or tensor.dtype != spec.dtype or tensor.device != spec.device:
        raise _mismatch(spec, tensor)
    reach = spec.bytes if tensor.is_contiguous() else reach_bytes(tensor.shape, tensor.stride(), tensor.element_size())
    if not is_allocated(tensor, reach):
        raise freed(tensor, f"input {spec.name}")
    return tensor


def own_window(view: torch.Tensor) -> torch.Tensor:
    """The elements of an input's view, each once: along an expanded axis all are one."""
    for axis, (size, stride) in enumerate(zip(view.shape, view.stride(), strict=True)):
        if size > 1 and stride == 0:
            view = view.narrow(axis, 0, 1)
    return view


def fill_input(spec: InputSpec, window: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copies the caller's tensor into the plan's memory; ``INVALID_CONFIG`` unless expanded axes are so in both."""
    for axis, size in enumerate(window.shape):
        if tensor.shape[axis] == size:
            continue
        if tensor.stride(axis) != 0:
            fault = (
                f"input {spec.name} has strides {tensor.stride()}, and the plan is for one expanded along axis {axis}"
            )
            raise InvalidConfig(fault, fix="expand it alike, or plan for this one", name=spec.name)
        tensor = tensor.narrow(axis, 0, 1)
    window.copy_(tensor)


def _mismatch(spec: InputSpec, tensor: torch.Tensor) -> InvalidConfig:
    attribute = next(name for name in ("shape", "dtype", "device") if getattr(spec, name) != getattr(tensor, name))
    expected, actual = getattr(spec, attribute), getattr(tensor, attribute)
    actual = tuple(actual) if attribute == "shape" else actual
    return InvalidConfig(
        f"input {spec.name} has {attribute} {actual}, and the plan is for {expected}",
        fix=f"give {_format_spec(spec)}, or plan for this one",
        name=spec.name,
        wanted=str(expected),
        found=str(actual),
    )


def _is_dense_tensor(tensor: torch.Tensor) -> bool:
    """Whether it has strided memory of its own: fake tensors have none, nor have those inside ``torch.func``."""
    is_subclass = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    if is_subclass or is_functorch_wrapped(tensor):
        return False
    return tensor.layout is torch.strided and not tensor.is_nested


def _format_spec(spec: InputSpec) -> str:
    return f"{str(spec.dtype)[6:]}[{','.join(map(str, spec.shape))}]"
