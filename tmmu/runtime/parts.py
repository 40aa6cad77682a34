"""Operators that can only allocate their results, asked for a part at a time: what they hold shrinks, the bits stay.

Rows of a normalization, heads of an attention and images of a convolution are computed apart from each other.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from tmmu.runtime.code import Code, instruction

aten = torch.ops.aten
Places = Sequence[torch.Tensor | None]
"""Where each result belongs; ``None`` for one that nobody reads."""
MOST_PARTS: Final = 64
"""A call costs about two microseconds; more would cost more than they save."""


def normalization_in_parts(given: Mapping[str, Any], results: Places, scratch: int) -> Code | None:
    """Layer normalization, some rows at a time."""
    x, shape = given["input"], given["normalized_shape"]
    rest = (shape, given["weight"], given["bias"], given["eps"])
    width = math.prod(shape)
    if width == 0 or not all(one is None or one.is_contiguous() for one in (x, *results)):
        return None
    rows = x.numel() // width
    flat, ones = x.view(rows, *shape), [1] * len(shape)
    places = [None if one is None else one.view(rows, *(ones if at else shape)) for at, one in enumerate(results)]
    code = [
        instruction(
            aten.native_layer_norm.default, flat[low:high], *rest, into=[_rows(one, low, high) for one in places]
        )
        for low, high in cuts(rows, _bytes(x), scratch)
    ]
    return tuple(code) if len(code) > 1 else None


def attention_in_parts(given: Mapping[str, Any], results: Places, scratch: int) -> Code | None:
    """Flash attention on the CPU, some heads of one sequence at a time, or whole sequences."""
    query, key, value, mask = given["query"], given["key"], given["value"], given.get("attn_mask")
    batch, heads = query.shape[:2]
    if key.shape[:2] != (batch, heads) or value.shape[:2] != (batch, heads) or (mask is not None and mask.dim() != 4):
        return None
    rest = {name: given[name] for name in ("dropout_p", "is_causal", "scale") if name in given}
    operator = aten._scaled_dot_product_flash_attention_for_cpu.default
    code = []
    for (low, high), (first, last) in _blocks(batch, heads, _bytes(query), scratch):
        q, k, v = (one[low:high, first:last] for one in (query, key, value))
        part = None if mask is None else _of_part(_of_part(mask, 0, low, high), 1, first, last)
        into = [None if one is None else one[low:high, first:last] for one in results]
        code.append(instruction(operator, q, k, v, **rest, attn_mask=part, into=into))
    return tuple(code) if len(code) > 1 else None


def convolution_in_parts(given: Mapping[str, Any], results: Places, scratch: int) -> Code | None:
    """Convolution, some images at a time, and of one image some of the channels that it gives."""
    x, weight, bias = given["input"], given["weight"], given["bias"]
    names = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    rest = [given[name] for name in names]
    whole = x.dim() == weight.dim() and not given["transposed"] and given["groups"] == 1 and x.shape[0] > 0
    (result,) = results
    if not whole or result is None:
        return None
    channels = weight.shape[0]
    code = []
    held = _bytes(result) + _bytes(weight) * x.shape[0]
    for (low, high), (first, last) in _blocks(x.shape[0], channels, held, scratch):
        some = None if bias is None else bias[first:last]
        into = (result[low:high, first:last],)
        code.append(instruction(aten.convolution.default, x[low:high], weight[first:last], some, *rest, into=into))
    return tuple(code) if len(code) > 1 else None


def cuts(count: int, held: int, scratch: int) -> list[tuple[int, int]]:
    """``count`` things that take ``held`` bytes, in runs of about ``scratch`` bytes each."""
    parts = min(_wanted(held, scratch), count, MOST_PARTS)
    step = -(-count // parts) if parts else 1
    return [(low, min(low + step, count)) for low in range(0, count, step)]


def _blocks(outer: int, inner: int, held: int, scratch: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Runs of outer things with all inner ones, or, where one outer thing takes too much, of its inner ones."""
    wanted = min(_wanted(held, scratch), MOST_PARTS)
    if wanted <= outer:
        return [(run, (0, inner)) for run in cuts(outer, held, scratch)]
    each = max(1, wanted // outer)
    return [((one, one + 1), run) for one in range(outer) for run in cuts(inner, held // outer, held // outer // each)]


def _wanted(held: int, scratch: int) -> int:
    return -(-held // scratch) if scratch > 0 else 1


def _rows(tensor: torch.Tensor | None, low: int, high: int) -> torch.Tensor | None:
    return None if tensor is None else tensor[low:high]


def _of_part(tensor: torch.Tensor, axis: int, low: int, high: int) -> torch.Tensor:
    """The part along an axis, of a tensor that may stand for all along it."""
    return tensor if tensor.shape[axis] == 1 else tensor.narrow(axis, low, high - low)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
