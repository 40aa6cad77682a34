"""Hooks that turn calls of a module into passes of its ring.

The module's ``forward`` is one pass. A pre-forward hook on every anchor begins the use of its blocks, a forward hook,
which runs after an error too, ends it. A lock serializes threads, as there is one schedule. A pass that an exception or
an interrupt breaks off is forgotten: the next one restarts the loop.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from threading import RLock
from typing import Any

import torch
from torch import nn

from tmmu.errors import InvalidConfig
from tmmu.runtime.ring.anchors import Anchor
from tmmu.runtime.ring.cursor import VisitCursor


class ModuleHooks:
    """The hooks of a module; ``install`` is a context."""

    def __init__(self, module: nn.Module, cursor: VisitCursor, anchors: Sequence[Anchor]) -> None:
        self._module, self._cursor = module, cursor
        self._parts = [anchor for anchor in anchors if anchor.module is not module]
        self._root_blocks = [block for anchor in anchors if anchor.module is module for block in anchor.blocks]
        self._lock = RLock()
        self._in_pass = self._is_broken = False

    @contextmanager
    def install(self) -> Iterator[None]:
        """While inside, calls of the module are passes."""
        with ExitStack() as stack:
            for part in self._parts:
                handle = part.module.register_forward_pre_hook(self._begin_blocks(part.blocks), prepend=True)
                stack.callback(handle.remove)
                handle = part.module.register_forward_hook(self._end_blocks(part.blocks), always_call=True)
                stack.callback(handle.remove)
            state = self._module.register_state_dict_pre_hook(_refuse_state)  # type: ignore[no-untyped-call]
            stack.callback(state.remove)
            stack.enter_context(_replace_forward(self._module, self._pass(self._module.forward)))
            yield

    def _pass(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(forward)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                self._begin_pass()
                try:
                    result = forward(*args, **kwargs)
                    self._cursor.finish()
                    self._is_broken = False
                    return result
                finally:
                    self._in_pass = False

        return run

    def _begin_pass(self) -> None:
        if self._in_pass:
            raise InvalidConfig("the streamed module calls itself", fix="stream the module around it")
        if torch.is_grad_enabled():
            raise InvalidConfig(
                "weights that stream are gone when a gradient needs them", fix="call the module under torch.no_grad()"
            )
        if self._is_broken:
            self._cursor.restart()
        # Broken until it has succeeded: an error or an interrupt at any point in between leaves the mark.
        self._in_pass = self._is_broken = True
        for block in self._root_blocks:
            self._cursor.begin(block)
            self._cursor.end(block)

    def _begin_blocks(self, blocks: tuple[int, ...]) -> Callable[..., None]:
        def begin(*_: Any) -> None:
            if not self._in_pass:
                raise InvalidConfig("a part of a streamed module is called alone", fix="call the module itself")
            for block in blocks:
                self._cursor.begin(block)

        return begin

    def _end_blocks(self, blocks: tuple[int, ...]) -> Callable[..., None]:
        def end(*_: Any) -> None:
            for block in blocks if self._in_pass else ():
                self._cursor.end(block)

        return end


@contextmanager
def _replace_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """While inside, the module computes by ``forward``."""
    own = module.__dict__.get("forward")
    module.forward = forward
    try:
        yield
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own


def _refuse_state(*_: Any) -> None:
    raise InvalidConfig("the weights of a streamed module are not in it", fix="take its state outside of the stream")
