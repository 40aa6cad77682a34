"""Biases by relative position, as T5 has them, of positions that are inputs of the step.

A model of transformers counts positions from the length of its cache, which is one number for all rows. Here each row
of the batch has positions of its own.
"""

from functools import partial
from inspect import signature
from typing import Any, Final

import torch

_BUCKETS: Final = "_relative_position_bucket"
_OPTIONS: Final = ("bidirectional", "num_buckets", "max_distance")


def biased_modules(decoder: torch.nn.Module) -> list[torch.nn.Module]:
    """The attentions of a decoder that add a bias by relative position, as T5 computes it."""
    return [
        module
        for module in decoder.modules()
        if getattr(module, "has_relative_attention_bias", False) and _has_buckets(module)
    ]


def bias_by_positions(decoder: torch.nn.Module, positions: torch.Tensor, kv_length: int) -> None:
    """Has these attentions take the positions ``int64[rows, tokens]`` of their queries, and ``kv_length`` keys."""
    for module in biased_modules(decoder):
        own: Any = module
        own.compute_bias = partial(_bias_at, module, positions, kv_length)


def _has_buckets(module: torch.nn.Module) -> bool:
    buckets = getattr(module, _BUCKETS, None)
    return buckets is not None and set(_OPTIONS) <= set(signature(buckets).parameters)


def _bias_at(module: Any, positions: torch.Tensor, kv_length: int, *args: Any, **kwargs: Any) -> torch.Tensor:
    """``dtype[rows, heads, tokens, kv_length]``, in the place of ``compute_bias``, whose lengths are not those."""
    del args, kwargs
    places = torch.arange(kv_length, device=positions.device)
    buckets = getattr(module, _BUCKETS)(
        places - positions[:, :, None],
        bidirectional=False,
        num_buckets=module.relative_attention_num_buckets,
        max_distance=module.relative_attention_max_distance,
    )
    bias: torch.Tensor = module.relative_attention_bias(buckets)
    return bias.permute(0, 3, 1, 2)
