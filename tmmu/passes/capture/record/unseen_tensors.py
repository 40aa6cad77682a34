"""Tensors that no recorded call returned: where they were computed, for the refusal that names it.

Tensors of other threads and tensors inside of others (a subclass with a dispatch of its own) are not seen. State: the
line that last started a thread, and the first declared tensor of such a subclass.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from tmmu.errors import CaptureFailed
from tmmu.passes.capture.replace import replace_attribute

_PLAIN: Final = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_FAKE: Final = "torch._subclasses."


def is_subclass(kind: type) -> bool:
    """Whether it is a class of tensors other than torch's plain and fake ones."""
    return issubclass(kind, torch.Tensor) and kind not in _PLAIN and not kind.__module__.startswith(_FAKE)


class UnseenTensors:
    """``source`` gives the line of the model that runs."""

    def __init__(self, source: Callable[[], str]) -> None:
        self._source = source
        self._thread = ""
        self._wrapped = ""

    @contextmanager
    def watch_threads(self) -> Iterator[None]:
        """Block in which the model's threads are noted as they start."""
        original = threading.Thread.start

        def start(thread: threading.Thread) -> Any:
            self._thread = self._source() or self._thread
            return original(thread)

        with replace_attribute(threading.Thread, "start", start):
            yield

    def note(self, tensor: torch.Tensor, name: str) -> None:
        """Note a declared tensor whose elements lie in others."""
        if is_subclass(type(tensor)) and not self._wrapped:
            self._wrapped = f"{name}, a {type(tensor).__name__}"

    def refusal(self) -> CaptureFailed:
        """The error for a tensor that comes from nowhere."""
        if self._wrapped:
            return CaptureFailed(
                f"a tensor was computed where the trace does not look: inside of {self._wrapped}",
                fix="tensors with a dispatch of their own are not traced: plan the model of plain tensors",
            )
        if self._thread:
            return CaptureFailed(
                f"a tensor was computed in another thread, started in {self._thread}",
                fix="run the model in one thread",
            )
        return CaptureFailed(
            "a tensor was computed where the trace does not look", fix="compute it in forward, or in the model's file"
        )
