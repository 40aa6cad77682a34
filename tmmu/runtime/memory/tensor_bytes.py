"""Tensors as bytes and back, for those who send them: row by row, and not copied where they lie so already."""

from collections.abc import Sequence

import torch


def tensor_payload(tensor: torch.Tensor) -> memoryview:
    """``uint8[bytes]``: the values of a dense tensor, row by row; its own memory where that is so on the host."""
    rows = tensor.detach().resolve_conj().resolve_neg().to("cpu").contiguous()
    data: memoryview = rows.reshape(-1).view(torch.uint8).numpy().data
    return data


def tensor_over(payload: memoryview, dtype: str, shape: Sequence[int]) -> torch.Tensor:
    """``dtype[shape]`` over memory that may be written; a copy where it may not. ``dtype``: without ``torch.``."""
    if not len(payload):
        return torch.empty(list(shape), dtype=getattr(torch, dtype))
    data = bytearray(payload) if payload.readonly else payload
    return torch.frombuffer(data, dtype=getattr(torch, dtype)).reshape(list(shape))
