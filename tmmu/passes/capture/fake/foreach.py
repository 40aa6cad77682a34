"""Operators on lists of tensors where eager takes them: torch asks for plain classes and a GPU, a trace has neither.

Clipping by norm takes them for plain tensors on a CPU too; an optimizer that names no form takes them on a GPU.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from tmmu.passes.capture.replace import replace_attribute
from tmmu.torch_private import DEFAULT_FORM, FakeTensor, foreach_types


@contextmanager
def foreach_as_on(device: str) -> Iterator[None]:
    """Block in which fake tensors count as plain ones, and optimizers take the form that they take on ``device``."""
    foreach_types.append(FakeTensor)
    try:
        with ExitStack() as stack:
            for module in _optimizer_modules() if device == "cuda" else ():
                stack.enter_context(replace_attribute(module, DEFAULT_FORM, _form_on_gpu))
            yield
    finally:
        foreach_types.remove(FakeTensor)


def _form_on_gpu(
    params: list[torch.Tensor],
    differentiable: bool,  # noqa: FBT001
    use_fused: bool = False,  # noqa: FBT001, FBT002
) -> tuple[bool, bool]:
    """(fused, foreach) where no form is named and all parameters are on one GPU.

    A file that imports ``torch.distributed.optim`` has torch compile this as a script: what follows the first line is
    none, as in the function that it stands for.
    """
    if torch.jit.is_scripting() or differentiable:  # type: ignore[attr-defined]
        return False, False
    fused = use_fused and all(param is None or param.is_floating_point() for param in params)
    return fused, not fused


def _optimizer_modules() -> list[Any]:
    """The modules of ``torch.optim`` that ask for the form."""
    loaded = [module for name, module in sorted(sys.modules.items()) if name.startswith("torch.optim.")]
    return [module for module in loaded if hasattr(module, DEFAULT_FORM)]
