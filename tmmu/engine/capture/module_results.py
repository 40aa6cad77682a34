"""What the modules of a step return, as windows on its storages: taken down while it is traced."""

from collections.abc import Mapping
from typing import Any

import torch

from tmmu.passes.capture.program import Window
from tmmu.passes.capture.record.graph_builder import window_of


class ModuleResults:
    """What is noted while modules return. A window's storage is a buffer of the graph that the trace is lowered to."""

    def __init__(self) -> None:
        self._calls: dict[str, list[tuple[Window, ...]]] = {}

    def note(self, path: str, result: Any) -> None:
        """Takes down what a module returns."""
        windows = [window_of(tensor) for tensor in _tensors_in(result)]
        self._calls.setdefault(path, []).append(tuple(window for window in windows if window is not None))

    @property
    def of_single_calls(self) -> dict[str, tuple[Window, ...]]:
        """By path of each module that was called once, the windows of the tensors that it returned, in their order."""
        return {path: calls[0] for path, calls in self._calls.items() if len(calls) == 1}


def _tensors_in(result: Any) -> list[torch.Tensor]:
    """The tensors in what a module returns: one, or lists, tuples and mappings of them."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, Mapping):
        return _tensors_in(tuple(result.values()))
    return [tensor for item in result for tensor in _tensors_in(item)] if isinstance(result, (tuple, list)) else []
