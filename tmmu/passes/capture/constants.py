"""The values of tensors that a model made of numbers, without weights or inputs: constants, and most module buffers.

The trace met such a tensor as a real one (``meta["value"]``), or it was made by calls that the recording of the model's
construction saw (``meta["origin"]``, ``meta["built_as"]``): then its slice of that recording is evaluated
(``record/values.py``). Weights that are loaded afterwards replace these values; whoever binds them decides that.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import torch
from torch import fx

from tmmu.passes.capture.program import CapturedProgram, Window
from tmmu.passes.capture.record.values import evaluate

_DEFAULTS: Final = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
"""What torch takes for a default dtype: no other float, such as one of eight bits."""


def constant_values(program: CapturedProgram) -> dict[str, torch.Tensor]:
    """By buffer name, the tensors that numbers alone decide, in the window that the program sees."""
    values: dict[str, torch.Tensor] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder":
            window = node.meta["windows"][0]
            value = node.meta["value"]
            value = _initial_value(node, window) if value is None else value
            storage = program.storages[window.storage]
            if value is not None and storage.role != "input":
                values[storage.name] = value
    return values


def assumed_inputs(program: CapturedProgram) -> dict[str, torch.Tensor]:
    """By name, the values of inputs that the trace looked at: the program is one for these values alone."""
    return _input_values(program, lambda node: node.meta.get("assumes") in program.assumed)


def integral_inputs(program: CapturedProgram) -> dict[str, torch.Tensor]:
    """By name, the values of the integral inputs that the model's file makes of numbers."""
    return _input_values(program, lambda node: _is_integral(node.meta["windows"][0]))


def _is_integral(window: Window) -> bool:
    dtype: torch.dtype = getattr(torch, window.dtype)
    return not (dtype.is_floating_point or dtype.is_complex)


def _input_values(program: CapturedProgram, selects: Callable[[fx.Node], bool]) -> dict[str, torch.Tensor]:
    values: dict[str, torch.Tensor] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder" and selects(node):
            window = node.meta["windows"][0]
            value = _initial_value(node, window) if node.meta["value"] is None else node.meta["value"]
            if value is not None and program.storages[window.storage].role == "input":
                values[program.storages[window.storage].name] = value
    return values


def _initial_value(node: fx.Node, window: Window) -> torch.Tensor | None:
    """The tensor of a declared node; ``None`` where it depends on more than numbers.

    A model may be made under another default dtype than today's, which no recording notes. So both are tried, and the
    value counts whose dtype and shape are those of the tensor.
    """
    origin = node.meta.get("origin") or node.meta.get("built_as")
    if origin is None or origin.builder is None or origin.index is not None:
        return None
    dtype = getattr(torch, window.dtype)
    for default in dict.fromkeys((torch.get_default_dtype(), dtype)):
        if default in _DEFAULTS:
            with _default_dtype(default):
                value = evaluate(origin.node, origin.builder)
            if value is not None and value.dtype == dtype and tuple(value.shape) == window.shape:
                return value
    return None


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def meta_weights(program: CapturedProgram) -> dict[str, torch.Tensor]:
    """By buffer name, parameters, constants and state as meta tensors: shape, stride and dtype, no bytes."""
    weights: dict[str, torch.Tensor] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder":
            window = node.meta["windows"][0]
            storage = program.storages[window.storage]
            if storage.role != "input":
                dtype = getattr(torch, window.dtype)
                weights[storage.name] = torch.empty_strided(window.shape, window.stride, dtype=dtype, device="meta")
    return weights


def weight_names(program: CapturedProgram) -> tuple[str, ...]:
    """The parameters and constants of the model by buffer name, whether or not the program changes them."""
    return tuple(storage.name for storage in program.storages if storage.role in ("parameter", "constant"))
