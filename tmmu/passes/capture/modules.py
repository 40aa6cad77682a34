"""Which module of the model is running: its path, kept current by wrapping ``nn.Module.__call__`` while tracing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from tmmu.passes.capture.activities import Activity, mark_activity
from tmmu.passes.capture.replace import replace_attribute


class ModuleStack:
    """``path`` is the innermost module being called, from the model's root; ``source`` its line where an export tells.

    Modules are kept alive: their ``id`` is the key of their name. ``on_return`` is told the path of each named module
    that returns, and what it returns.
    """

    def __init__(self, on_return: Callable[[str, Any], None] | None = None) -> None:
        self._on_return = on_return
        self.path = ""
        self.source = ""
        self._names: dict[int, str] = {}
        self._modules: list[nn.Module] = []

    def name_all(self, model: nn.Module, prefix: str = "") -> None:
        """Give every module of the tree its first path, below ``prefix``."""
        for name, module in model.named_modules(prefix=prefix):
            self._names[id(module)] = name
            self._modules.append(module)

    def forget(self) -> None:
        """Let go of the modules. A view in one holds the tensor under it, whose mark holds what recorded it."""
        self._names.clear()
        self._modules.clear()

    def _note_return(self, module: nn.Module, result: Any) -> Any:
        if self._on_return is not None and id(module) in self._names:
            self._on_return(self.path, result)
        return result

    @contextmanager
    def track_calls(self) -> Iterator[None]:
        """Block in which ``path`` follows every module call."""
        original = nn.Module.__call__

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            before = self.path
            self.path = self._names.get(id(module), before)
            try:
                # The result is in no local of this frame: an exception that the model keeps would keep it alive.
                return self._note_return(module, original(module, *args, **kwargs))
            except BaseException as error:
                if id(module) in self._names:
                    mark_activity(error, Activity.FORWARD)
                raise
            finally:
                self.path = before

        with replace_attribute(nn.Module, "__call__", call):
            yield
