"""The values of tensors that a model made of numbers, without weights or inputs: constants, and most module buffers."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import fx

from tmmu.passes.capture.program import CapturedProgram, Window
from tmmu.passes.capture.values import evaluate


def constant_values(program: CapturedProgram) -> dict[str, torch.Tensor]:
    """By buffer name, the value that each tensor has which numbers alone decide, before anything is loaded.

    A tensor lies as the program sees it; its storage may hold more.
    """
    found: dict[str, torch.Tensor] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder":
            window = node.meta["windows"][0]
            value = node.meta["value"]
            value = _evaluated(node, window) if value is None else value
            storage = program.storages[window.storage]
            if value is not None and storage.role != "input":
                found[storage.name] = value
    return found


def _evaluated(node: fx.Node, window: Window) -> torch.Tensor | None:
    """The tensor of a declared node, as a model of this dtype makes it; nothing where it is more than numbers.

    A model may be made under another default dtype than today's, and nothing recorded which: its tensors tell.
    """
    origin = node.meta.get("origin") or node.meta.get("made")
    if origin is None or origin.recorder is None or origin.index is not None:
        return None
    dtype = getattr(torch, window.dtype)
    for default in dict.fromkeys((torch.get_default_dtype(), dtype)):
        if default.is_floating_point:
            with _default_dtype(default):
                value = evaluate(origin.node, origin.recorder)
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


def weight_forms(program: CapturedProgram) -> dict[str, torch.Tensor]:
    """By buffer name, the shape, stride and dtype in which the model declares what it starts from, on no memory."""
    found: dict[str, torch.Tensor] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder":
            window = node.meta["windows"][0]
            storage = program.storages[window.storage]
            if storage.role != "input":
                dtype = getattr(torch, window.dtype)
                found[storage.name] = torch.empty_strided(window.shape, window.stride, dtype=dtype, device="meta")
    return found


def weight_names(program: CapturedProgram) -> tuple[str, ...]:
    """The parameters and constants of the model by buffer name, whether or not the program changes them."""
    return tuple(storage.name for storage in program.storages if storage.role in ("parameter", "constant"))
