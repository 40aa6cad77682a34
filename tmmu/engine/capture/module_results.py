"""What the modules of a step return, as windows on its storages: taken down while it is traced."""

from collections.abc import Mapping
from typing import Any

import torch

from tmmu.passes.capture.program import Window
from tmmu.passes.capture.record.graph_builder import window_of


class ModuleResults:
    """``windows``: by path, those of the tensors that a module returned when it was last called, in their order.

    A window's storage is a buffer of the graph that the trace is lowered to.
    """

    def __init__(self) -> None:
        self.windows: dict[str, tuple[Window, ...]] = {}

    def note(self, path: str, result: Any) -> None:
        """Takes down what a module returns."""
        windows = [window_of(tensor) for tensor in _tensors_in(result)]
        self.windows[path] = tuple(window for window in windows if window is not None)


def _tensors_in(result: Any) -> list[torch.Tensor]:
    """The tensors in what a module returns: one, or lists, tuples and mappings of them."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, Mapping):
        return _tensors_in(tuple(result.values()))
    return [tensor for item in result for tensor in _tensors_in(item)] if isinstance(result, (tuple, list)) else []
