"""Layers of torch that run as one fused kernel in evaluation, and are traced in parts: attention, encoder layers.

They ask whether an argument overrides torch's functions, as one of many things that forbid the kernel, and under a
trace the answer is yes. Where it alone forbids the kernel, the model as it is has other bits, in the last places.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import torch
from torch import nn

from tmmu.ir.lifetimes import EagerRun
from tmmu.passes.capture.replace import replace_attribute
from tmmu.torch_private import FakeTensor

_ASKING: Final = frozenset({"torch.nn.modules.activation", "torch.nn.modules.transformer"})
_PLAIN: Final = (torch.Tensor, nn.Parameter, FakeTensor)


@contextmanager
def fused_layers_noted() -> Iterator[dict[str, None]]:
    """Block in which names of classes whose kernel the trace alone forbids are noted, each once."""
    noted: dict[str, None] = {}
    original = torch.overrides.has_torch_function

    def has_torch_function(arguments: Any) -> bool:
        frame = sys._getframe(1)
        if frame.f_globals.get("__name__") in _ASKING and _is_fused(arguments):
            noted[type(frame.f_locals["self"]).__name__] = None
        return original(arguments)

    with replace_attribute(torch.overrides, "has_torch_function", has_torch_function):
        yield noted


def with_parts(run: EagerRun | None, noted: Iterable[str]) -> EagerRun | None:
    """The run with the names of the layers whose parts it is of."""
    return None if run is None else replace(run, in_parts=tuple(noted))


def _is_fused(arguments: Any) -> bool:
    """Whether nothing about these tensors forbids the kernel."""
    tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
    is_trained = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return not is_trained and all(type(tensor) in _PLAIN for tensor in tensors)
