"""The generator of a session: operators draw from the process's own, which has the state of the session meanwhile."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

from tmmu.passes.capture.replace import TRACE_LOCK
from tmmu.torch_private import default_generator

_STATES: Final = torch.Generator()
"""Makes the state of a seed, while the lock is taken."""


class RandomStream:
    """The state of a generator between runs, ``uint8[5056]``."""

    def __init__(self, seed: int) -> None:
        self.set_seed(seed)

    def set_seed(self, seed: int) -> None:
        """Begins anew, as ``torch.manual_seed`` does."""
        with TRACE_LOCK:
            self._state = _STATES.manual_seed(seed).get_state()

    @contextmanager
    def draw(self) -> Iterator[None]:
        """Block in which operators draw from this stream; other blocks, and traces, wait for it."""
        with TRACE_LOCK:
            before = default_generator.get_state()
            default_generator.set_state(self._state)
            try:
                yield
            finally:
                self._state = default_generator.get_state()
                default_generator.set_state(before)
