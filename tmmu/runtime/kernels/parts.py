"""Operators that can only allocate their results, asked for a part at a time: what they hold shrinks, the bits stay.

Rows of a normalization, heads of an attention and images of a convolution are computed apart from each other.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch

from tmmu.runtime.kernels.code import Code, instruction

aten = torch.ops.aten
Places = Sequence[torch.Tensor | None]
"""Where each result belongs; ``None`` for one that nobody reads."""
Run = tuple[int, int]
"""Half-open, of indices along an axis."""
Pick = Callable[[torch.Tensor | None], Any]
GRAIN: Final = 1 << 19
"""Bytes that are worth a call of their own: computing and copying them takes a hundred times as long as calling."""
MOST_PARTS: Final = 64
"""A call costs about two microseconds; more would cost more than they save."""


def normalization_in_parts(given: Mapping[str, Any], results: Places, scratch: int) -> Code | None:
    """Layer normalization, some rows at a time."""
    x, shape = given["input"], given["normalized_shape"]
    rest = (shape, given["weight"], given["bias"], given["eps"])
    found = in_rows(x, len(shape), results) if x.numel() else None
    if found is None:
        return None
    x, places = found
    code = [
        instruction(
            aten.native_layer_norm.default,
            x[slice(*run), slice(*rows)],
            *rest,
            into=[None if one is None else one[slice(*run), slice(*rows)] for one in places],
        )
        for run, rows in blocks(x.shape[0], x.shape[1], bytes_of(x), scratch)
    ]
    return tuple(code) if len(code) > 1 else None


def in_rows(x: torch.Tensor, axes: int, results: Places) -> tuple[torch.Tensor, Places] | None:
    """The same tensors with two axes before those of one row; ``None`` where they have no such form."""
    if all(one is None or one.is_contiguous() for one in (x, *results)):
        flat = [None if one is None else one.view(1, -1, *one.shape[one.dim() - axes :]) for one in (x, *results)]
        return flat[0], flat[1:]  # type: ignore[return-value]
    return (x, results) if x.dim() == axes + 2 else None


def softmax_in_parts(given: Mapping[str, Any], results: Places, scratch: int) -> Code | None:
    """The softmax that gives zeros where all is masked, over the last axis, some rows at a time."""
    x, (result,) = given["self"], results
    plain = given.get("dtype") is None and given["dim"] % x.dim() == x.dim() - 1 if x.dim() else False
    if result is None or not plain or not x.numel() or not (x.is_contiguous() and result.is_contiguous()):
        return None
    flat, place = x.view(-1, x.shape[-1]), result.view(-1, x.shape[-1])
    code = [
        instruction(aten._safe_softmax.default, flat[low:high], -1, into=(place[low:high],))
        for low, high in cuts(flat.shape[0], bytes_of(x), scratch)
    ]
    return tuple(code) if len(code) > 1 else None


def attention_in_parts(given: Mapping[str, Any], results: Places, scratch: int) -> Code | None:
    """Flash attention on the CPU, some heads of one sequence at a time, or whole sequences."""
    rest = {name: given[name] for name in ("dropout_p", "is_causal", "scale") if name in given}
    operator = aten._scaled_dot_product_flash_attention_for_cpu.default
    code = []
    for of_queries, of_keys in heads_in_parts(given, bytes_of(given["query"]), scratch):
        q, k, v = of_queries(given["query"]), of_keys(given["key"]), of_keys(given["value"])
        into = [None if one is None else of_queries(one) for one in results]
        code.append(instruction(operator, q, k, v, **rest, attn_mask=of_queries(given.get("attn_mask")), into=into))
    return tuple(code) if len(code) > 1 else None


def heads_in_parts(given: Mapping[str, Any], held: int, scratch: int) -> list[tuple[Pick, Pick]]:
    """What picks the queries, and what the keys, of each part of an attention; none where it cannot be cut.

    Queries may come in groups that share a head of keys. A tensor that stands for all along an axis stays whole there.
    """
    query, key, value, mask = given["query"], given["key"], given["value"], given.get("attn_mask")
    (batch, heads), kept = query.shape[:2], key.shape[1]
    alike = key.shape[0] == batch and value.shape[:2] == key.shape[:2] and kept > 0 and heads % kept == 0
    if not alike or (mask is not None and mask.dim() != 4):
        return []
    group = heads // kept
    return [
        (partial(_picked, run, (first * group, last * group)), partial(_picked, run, (first, last)))
        for run, (first, last) in blocks(batch, kept, held, scratch)
    ]


def cuts(count: int, held: int, scratch: int) -> list[Run]:
    """``count`` things that take ``held`` bytes, in runs of about ``scratch`` bytes each."""
    parts = min(_wanted(held, min(scratch, GRAIN)), count, MOST_PARTS)
    step = -(-count // parts) if parts else 1
    return [(low, min(low + step, count)) for low in range(0, count, step)]


def blocks(outer: int, inner: int, held: int, scratch: int) -> list[tuple[Run, Run]]:
    """Runs of outer things with all inner ones, or, where one outer thing takes too much, of its inner ones."""
    wanted = min(_wanted(held, min(scratch, GRAIN)), MOST_PARTS)
    if wanted <= outer:
        return [(run, (0, inner)) for run in cuts(outer, held, scratch)]
    each = max(1, wanted // outer)
    return [((one, one + 1), run) for one in range(outer) for run in cuts(inner, held // outer, held // outer // each)]


def _wanted(held: int, scratch: int) -> int:
    return -(-held // scratch) if scratch > 0 else 1


def rows_of(tensor: torch.Tensor | None, low: int, high: int) -> torch.Tensor | None:
    """Of what there is, rows ``[low, high)``."""
    return None if tensor is None else tensor[low:high]


def _picked(run: Run, heads: Run, tensor: torch.Tensor | None) -> Any:
    return None if tensor is None else _of_part(_of_part(tensor, 0, run), 1, heads)


def _of_part(tensor: torch.Tensor, axis: int, run: Run) -> torch.Tensor:
    return tensor if tensor.shape[axis] == 1 else tensor.narrow(axis, run[0], run[1] - run[0])


def bytes_of(tensor: torch.Tensor) -> int:
    """Of its elements, counted once each."""
    return tensor.numel() * tensor.element_size()
