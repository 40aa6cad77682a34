"""Each call that eager makes in a real run: its name, its line, and a scope for what the allocator does in it.

A mode below autograd, so that gradients and updates are calls too, as in a trace.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

import torch

from tmmu.torch_private import UncompiledDispatchMode

_SILENT: Final = frozenset({"prim", "profiler"})


class AllocationScopes(Protocol):
    """What gives each call its scope."""

    def in_call(self, call: int) -> AbstractContextManager[Any]:
        """Block of call number ``call``, or of all that comes ``BEFORE`` the run."""


class CallObserver(UncompiledDispatchMode):
    """``names`` and ``sources`` of the calls so far; ``source`` says the user's line that runs.

    ``lifted``: by call, the address of the constant that it lifts, which no call made.
    """

    def __init__(self, scopes: AllocationScopes, source: Callable[[], str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []
        self.sources: list[str] = []
        self.lifted: dict[int, int] = {}
        self._scopes, self._source = scopes, source

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func.namespace in _SILENT or func is torch.ops.aten._local_scalar_dense.default:
            return func(*args, **(kwargs or {}))
        call = len(self.names)
        self.names.append(str(func))
        self.sources.append(self._source())
        if func is torch.ops.aten.lift_fresh.default:
            self.lifted[call] = args[0].untyped_storage().data_ptr()
        with self._scopes.in_call(call):
            return func(*args, **(kwargs or {}))
