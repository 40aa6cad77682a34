"""Layers of oneDNN's LSTM: what they keep for their gradients, and how many gradients there are."""

from typing import Any, Final

import torch

_GATES: Final = 4
"""Of an LSTM: what a row of its weights is made of."""
_PAGE: Final = 4096


def recurrent(args: tuple[Any, ...], result: Any, device: str) -> Any:  # noqa: ARG001
    """A layer of oneDNN's: what it keeps has bytes."""
    return *result[:3], recurrent_workspace(*args)


def recurrent_gradients(args: tuple[Any, ...], result: Any, device: str) -> Any:  # noqa: ARG001
    """The gradients of a layer's two biases are two tensors."""
    return *result[:4], torch.empty_like(result[3]), *result[5:]


def recurrent_workspace(x: torch.Tensor, weight: torch.Tensor, *_: Any) -> torch.Tensor | None:
    """What oneDNN keeps of an LSTM layer for its gradient: ``uint8[bytes]``, nothing where gradients are off.

    Gates, states and their gradients of ``steps`` times ``rows``, each array on pages of its own. Rows of most of them
    are padded to 64 bytes, and by as much again where they are a multiple of 1,024. Found by trying: 1,500 shapes, in
    the builds of torch 2.11, 2.13 and 2.14.
    """
    if not torch.is_grad_enabled():
        return None
    steps, rows, features = x.shape
    hidden = weight.shape[0] // _GATES
    state, padded_input = _padded_row(hidden), _padded_row(max(features, hidden))
    arrays = [steps * _padded_row(_GATES * hidden), steps * state]
    arrays += [2 * (steps + 1) * padded_input] * 3 + [2 * (steps + 1) * hidden] * 2
    return torch.empty(sum(-(-4 * rows * array // _PAGE) * _PAGE for array in arrays), dtype=torch.uint8)


def _padded_row(elements: int) -> int:
    row = -(-elements // 16) * 16
    return row + 16 if row % 256 == 0 else row
