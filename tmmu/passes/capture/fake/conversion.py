"""How modules of fake tensors are converted and copied: what is shared stays shared.

``.to()``, ``.half()`` and their kind walk a tree of modules and replace each parameter. Two modules may hold one
parameter (tied weights), and the walk meets it twice. ``_Conversion`` therefore keeps, from the first call of
``Module._apply`` to its return (``_depth`` 0 to 0), what each parameter has become; the result maps to itself, since it
is met again where the walk enters a module twice. Old and new parameter are kept alive meanwhile: their ``id`` is the
key. After the outermost call returns nothing is remembered, so that a later conversion starts anew.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from tmmu.passes.capture.replace import replace_attribute
from tmmu.torch_private import MODULE_APPLY, FakeTensor, buffer_table, parameter_table


@contextmanager
def convertible_modules() -> Iterator[None]:
    """Block in which ``.to()``, ``.half()`` and their kind work on modules of fake tensors.

    torch swaps the tensors of such modules in place and gives up where anything refers to them weakly; here each
    parameter is replaced, once, wherever it is used.
    """
    with replace_attribute(nn.Module, MODULE_APPLY, _Conversion().apply):
        yield


@contextmanager
def copyable_tensors() -> Iterator[None]:
    """Block in which ``copy.deepcopy`` of a fake tensor is a clone: a storage without bytes cannot be copied as one."""
    original = torch.Tensor.__deepcopy__

    def copy_tensor(tensor: torch.Tensor, memo: dict[int, Any]) -> Any:
        if not isinstance(tensor, FakeTensor):
            return original(tensor, memo)  # type: ignore[no-untyped-call]
        if id(tensor) not in memo:
            copy = tensor.detach().clone()
            is_parameter = isinstance(tensor, nn.Parameter)
            memo[id(tensor)] = nn.Parameter(copy, tensor.requires_grad) if is_parameter else copy
            memo[id(tensor)].requires_grad_(tensor.requires_grad)
        return memo[id(tensor)]

    with replace_attribute(torch.Tensor, "__deepcopy__", copy_tensor):
        yield


class _Conversion:
    """Remembers, while one conversion walks a tree of modules, what each parameter has become."""

    def __init__(self) -> None:
        self._depth = 0
        self._replacements: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}

    @property
    def apply(self) -> Callable[..., nn.Module]:
        """A function that stands for ``Module._apply``."""

        def apply_to(module: nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> nn.Module:  # noqa: FBT001, FBT002
            self._depth += 1
            try:
                for child in module.children() if recurse else ():
                    getattr(child, MODULE_APPLY)(fn)
                self._replace(module, fn)
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self._replacements.clear()
            return module

        return apply_to

    def _replace(self, module: nn.Module, fn: Callable[[Any], Any]) -> None:
        parameters, buffers = parameter_table(module), buffer_table(module)
        for key, parameter in parameters.items():
            if parameter is not None:
                parameters[key] = self._convert(parameter, fn)
        for key, buffer in buffers.items():
            if buffer is not None:
                buffers[key] = fn(buffer)

    def _convert(self, parameter: nn.Parameter, fn: Callable[[Any], Any]) -> nn.Parameter:
        entry = self._replacements.get(id(parameter))
        if entry is not None:
            return entry[1]
        with torch.no_grad():
            data = fn(parameter)
        converted = parameter if data is parameter else nn.Parameter(data, requires_grad=parameter.requires_grad)
        self._replacements[id(parameter)] = (parameter, converted)
        self._replacements[id(converted)] = (converted, converted)
        return converted
