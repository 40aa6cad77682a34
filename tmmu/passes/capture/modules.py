"""Which module of the model is running: a stack kept by wrapping the module call while tracing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


class ModuleStack:
    """``path`` is the innermost module being called, from the model's root; ``source`` its line, if known before."""

    def __init__(self) -> None:
        self.path = ""
        self.source = ""
        self._names: dict[int, str] = {}
        self._kept: list[nn.Module] = []

    def name_all(self, model: nn.Module) -> None:
        """Give every module of the tree its first path."""
        for name, module in model.named_modules():
            self._names[id(module)] = name
            self._kept.append(module)

    @contextmanager
    def following(self) -> Iterator[None]:
        """While inside, ``path`` follows every module call."""
        original = nn.Module.__call__

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            before = self.path
            self.path = self._names.get(id(module), before)
            try:
                return original(module, *args, **kwargs)
            finally:
                self.path = before

        nn.Module.__call__ = call  # type: ignore[method-assign]
        try:
            yield
        finally:
            nn.Module.__call__ = original  # type: ignore[method-assign]
