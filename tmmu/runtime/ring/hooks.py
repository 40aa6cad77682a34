"""A call of the module is a pass: who may make one, when, and what an error in the middle leaves behind."""

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
    """The module's own ``forward``, and hooks on the parts that need blocks. Threads take turns.

    A pass that an exception breaks off, an interrupt included, is forgotten: the next one begins from nothing.
    """

    def __init__(self, module: nn.Module, walk: VisitCursor, anchors: Sequence[Anchor]) -> None:
        self._module, self._walk = module, walk
        self._parts = [anchor for anchor in anchors if anchor.module is not module]
        self._first = [block for anchor in anchors if anchor.module is module for block in anchor.blocks]
        self._turn = RLock()
        self._inside = self._broken = False

    @contextmanager
    def install(self) -> Iterator[None]:
        """While inside, the module's calls are passes."""
        with ExitStack() as stack:
            for part in self._parts:
                hooks = part.module.register_forward_pre_hook(self._needs(part.blocks), prepend=True)
                stack.callback(hooks.remove)
                hooks = part.module.register_forward_hook(self._done(part.blocks), always_call=True)
                stack.callback(hooks.remove)
            refusing = self._module.register_state_dict_pre_hook(_refuse_state)  # type: ignore[no-untyped-call]
            stack.callback(refusing.remove)
            stack.enter_context(_replaced(self._module, self._pass(self._module.forward)))
            yield

    def _pass(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(forward)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self._turn:
                self._begin()
                try:
                    result = forward(*args, **kwargs)
                    self._walk.finish()
                    self._broken = False
                    return result
                finally:
                    self._inside = False

        return run

    def _begin(self) -> None:
        if self._inside:
            raise InvalidConfig("the streamed module calls itself", fix="stream the module around it")
        if torch.is_grad_enabled():
            raise InvalidConfig(
                "weights that stream are gone when a gradient needs them", fix="call the module under torch.no_grad()"
            )
        if self._broken:
            self._walk.restart()
        self._inside = self._broken = True
        for block in self._first:
            self._walk.begin(block)
            self._walk.end(block)

    def _needs(self, blocks: tuple[int, ...]) -> Callable[..., None]:
        def needs(*_: Any) -> None:
            if not self._inside:
                raise InvalidConfig("a part of a streamed module is called alone", fix="call the module itself")
            for block in blocks:
                self._walk.begin(block)

        return needs

    def _done(self, blocks: tuple[int, ...]) -> Callable[..., None]:
        def done(*_: Any) -> None:
            for block in blocks if self._inside else ():
                self._walk.end(block)

        return done


@contextmanager
def _replaced(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
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
