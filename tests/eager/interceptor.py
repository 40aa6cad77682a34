"""Live bytes of a run on real tensors, call by call, by weak references on its storages. Shares nothing with tmmu.

A dispatch mode below autograd sees each call. A storage that a call returns first is live from that call until its last
reference goes; what was there before the run is not counted. Cycles are not collected while it runs.
"""

import gc
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Interceptor(TorchDispatchMode):
    """``live``: after each call, the bytes of what calls made and somebody holds; ``calls``: their names.

    With ``count`` also of what was there before.
    """

    def __init__(self, before: Iterable[torch.Tensor], *, count: bool = False) -> None:
        super().__init__()
        self.live: list[int] = []
        self.calls: list[str] = []
        self._bytes = 0
        self._known: dict[int, weakref.ref[Any]] = {}
        for tensor in before:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._known:
                self._watch(storage, storage.nbytes() if count else 0)

    def _watch(self, storage: torch.UntypedStorage, size: int) -> None:
        address = storage._cdata

        def on_death(_: Any) -> None:
            self._bytes -= size
            del self._known[address]

        self._known[address] = weakref.ref(storage, on_death)
        self._bytes += size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        if func.namespace in ("prim", "profiler") or "_local_scalar_dense" in str(func):
            return result
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage()._cdata not in self._known:
                self._watch(leaf.untyped_storage(), leaf.untyped_storage().nbytes())
        self.calls.append(str(func))
        self.live.append(self._bytes)
        return result


def live_bytes(run: Callable[[], Any], before: Iterable[torch.Tensor]) -> tuple[list[int], list[str]]:
    """Live bytes during each call of ``run`` and the calls' names."""
    interceptor = Interceptor(before)
    gc.disable()
    try:
        with interceptor:
            result = run()
        del result
    finally:
        gc.enable()
    return interceptor.live, interceptor.calls
