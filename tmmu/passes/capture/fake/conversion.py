"""How modules of fake tensors are converted and copied: what is shared stays shared."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor


@contextmanager
def convertible_modules() -> Iterator[None]:
    """While inside, ``.to()``, ``.half()`` and their kind work on modules of fake tensors.

    torch swaps the tensors of such modules in place and gives up where anything refers to them weakly; here each
    parameter is replaced, once, wherever it is used.
    """
    original = nn.Module._apply
    nn.Module._apply = _Conversion().apply  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module._apply = original  # type: ignore[method-assign]


@contextmanager
def copyable_tensors() -> Iterator[None]:
    """While inside, ``copy.deepcopy`` of a fake tensor is a clone: a storage without bytes cannot be copied as one."""
    original = torch.Tensor.__deepcopy__

    def copied(tensor: torch.Tensor, memo: dict[int, Any]) -> Any:
        if not isinstance(tensor, FakeTensor):
            return original(tensor, memo)  # type: ignore[no-untyped-call]
        if id(tensor) not in memo:
            made = tensor.detach().clone()
            parameter = isinstance(tensor, nn.Parameter)
            memo[id(tensor)] = nn.Parameter(made, tensor.requires_grad) if parameter else made
            memo[id(tensor)].requires_grad_(tensor.requires_grad)
        return memo[id(tensor)]

    torch.Tensor.__deepcopy__ = copied  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.Tensor.__deepcopy__ = original  # type: ignore[method-assign]


class _Conversion:
    """Remembers, while one conversion walks a tree of modules, what each parameter has become."""

    def __init__(self) -> None:
        self._depth = 0
        self._became: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}

    @property
    def apply(self) -> Callable[..., nn.Module]:
        """A function that stands for ``Module._apply``."""

        def _apply(module: nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> nn.Module:  # noqa: FBT001, FBT002
            self._depth += 1
            try:
                for child in module.children() if recurse else ():
                    child._apply(fn)  # type: ignore[no-untyped-call]
                self._replace(module, fn)
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self._became.clear()
            return module

        return _apply

    def _replace(self, module: nn.Module, fn: Callable[[Any], Any]) -> None:
        for key, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[key] = self._converted(parameter, fn)
        for key, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[key] = fn(buffer)

    def _converted(self, parameter: nn.Parameter, fn: Callable[[Any], Any]) -> nn.Parameter:
        known = self._became.get(id(parameter))
        if known is not None:
            return known[1]
        with torch.no_grad():
            applied = fn(parameter)
        same = applied is parameter
        made = parameter if same else nn.Parameter(applied, requires_grad=parameter.requires_grad)
        self._became[id(parameter)] = (parameter, made)
        self._became[id(made)] = (made, made)
        return made
