"""Operators that can only allocate their results, computed in parts, so that less is allocated at a time.

A part is a run of rows of a normalization, heads of an attention or images of a convolution: slices of the arguments
go in, and the result is copied to the same slice of its destination. State: none; each function returns code, or
``None`` where one call is enough or the operator cannot be cut.

Invariants, tested over random shapes in ``tests/unit/runtime/kernels/test_parts.py``: parts are disjoint and cover the
result; at most ``MAX_PARTS`` along an axis. That a part has the bits of the whole is not assumed: kernels may pick
another code path for another size, so ``steps/validate.py`` runs both before the code is used.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch

from tmmu.runtime.kernels.code import Arguments, Code, instruction

aten = torch.ops.aten
Results = Sequence[torch.Tensor | None]
"""The destination of each result; ``None`` for one that no op reads."""
IndexRange = tuple[int, int]
"""Half-open, of indices along an axis."""
Slicer = Callable[[torch.Tensor | None], Any]
PART_BYTES: Final = 1 << 19
"""Bytes that are worth a call of their own: computing and copying 512 KiB takes a hundred times as long as a call."""
MAX_PARTS: Final = 64
"""A call costs about two microseconds; more parts would cost more time than their bytes are worth."""


def normalization_in_parts(args: Arguments, results: Results, scratch: int) -> Code | None:
    """``native_layer_norm``, some rows at a time."""
    x, shape = args["input"], args["normalized_shape"]
    tail = (shape, args["weight"], args["bias"], args["eps"])
    flat = as_rows(x, len(shape), results) if x.numel() else None
    if flat is None:
        return None
    x, targets = flat
    code = [
        instruction(
            aten.native_layer_norm.default,
            x[slice(*outer), slice(*rows)],
            *tail,
            into=[None if target is None else target[slice(*outer), slice(*rows)] for target in targets],
        )
        for outer, rows in split_blocks(x.shape[0], x.shape[1], tensor_bytes(x), scratch)
    ]
    return tuple(code) if len(code) > 1 else None


def as_rows(x: torch.Tensor, axes: int, results: Results) -> tuple[torch.Tensor, Results] | None:
    """The same tensors with two axes before the ``axes`` of one row; ``None`` where they have no such view."""
    tensors = (x, *results)
    if all(tensor is None or tensor.is_contiguous() for tensor in tensors):
        flat = [
            None if tensor is None else tensor.view(1, -1, *tensor.shape[tensor.dim() - axes :]) for tensor in tensors
        ]
        return flat[0], flat[1:]  # type: ignore[return-value]
    return (x, results) if x.dim() == axes + 2 else None


def softmax_in_parts(args: Arguments, results: Results, scratch: int) -> Code | None:
    """``_safe_softmax`` (zeros where a row is all masked) over the last axis, some rows at a time."""
    x, (result,) = args["self"], results
    is_last_axis = args.get("dtype") is None and args["dim"] % x.dim() == x.dim() - 1 if x.dim() else False
    if result is None or not is_last_axis or not x.numel() or not (x.is_contiguous() and result.is_contiguous()):
        return None
    flat, target = x.view(-1, x.shape[-1]), result.view(-1, x.shape[-1])
    code = [
        instruction(aten._safe_softmax.default, flat[low:high], -1, into=(target[low:high],))
        for low, high in split_range(flat.shape[0], tensor_bytes(x), scratch)
    ]
    return tuple(code) if len(code) > 1 else None


def attention_in_parts(args: Arguments, results: Results, scratch: int) -> Code | None:
    """Flash attention on the CPU, some heads of one sequence at a time, or whole sequences."""
    options = {name: args[name] for name in ("dropout_p", "is_causal", "scale") if name in args}
    operator = aten._scaled_dot_product_flash_attention_for_cpu.default
    code = []
    for of_queries, of_keys in split_heads(args, tensor_bytes(args["query"]), scratch):
        q, k, v = of_queries(args["query"]), of_keys(args["key"]), of_keys(args["value"])
        into = [None if result is None else of_queries(result) for result in results]
        code.append(instruction(operator, q, k, v, **options, attn_mask=of_queries(args.get("attn_mask")), into=into))
    return tuple(code) if len(code) > 1 else None


def split_heads(args: Arguments, total_bytes: int, scratch: int) -> list[tuple[Slicer, Slicer]]:
    """For each part of an attention, what slices queries and what slices keys; empty where it cannot be cut.

    Queries may come in groups that share a head of keys (GQA); a group is never cut. An axis of length one (a mask
    that is broadcast) stays whole.
    """
    query, key, value, mask = args["query"], args["key"], args["value"], args.get("attn_mask")
    (batch, heads), key_heads = query.shape[:2], key.shape[1]
    is_grouped = key.shape[0] == batch and value.shape[:2] == key.shape[:2] and key_heads > 0 and heads % key_heads == 0
    if not is_grouped or (mask is not None and mask.dim() != 4):
        return []
    group = heads // key_heads
    return [
        (partial(_slice_heads, rows, (first * group, last * group)), partial(_slice_heads, rows, (first, last)))
        for rows, (first, last) in split_blocks(batch, key_heads, total_bytes, scratch)
    ]


def split_range(count: int, total_bytes: int, scratch: int) -> list[IndexRange]:
    """``[0, count)`` in equal ranges of about ``scratch`` bytes each, where all of it takes ``total_bytes``."""
    parts = min(_part_count(total_bytes, min(scratch, PART_BYTES)), count, MAX_PARTS)
    step = -(-count // parts) if parts else 1
    return [(low, min(low + step, count)) for low in range(0, count, step)]


def split_blocks(outer: int, inner: int, total_bytes: int, scratch: int) -> list[tuple[IndexRange, IndexRange]]:
    """(outer range, inner range) pairs that cover ``outer`` rows of ``inner`` columns.

    Whole rows of the outer axis where one fits in ``scratch`` bytes, else ranges of the inner axis of one row each.
    """
    parts = min(_part_count(total_bytes, min(scratch, PART_BYTES)), MAX_PARTS)
    if parts <= outer:
        return [(rows, (0, inner)) for rows in split_range(outer, total_bytes, scratch)]
    row_bytes, row_parts = total_bytes // outer, max(1, parts // outer)
    columns = split_range(inner, row_bytes, row_bytes // row_parts)
    return [((row, row + 1), part) for row in range(outer) for part in columns]


def _part_count(total_bytes: int, scratch: int) -> int:
    return -(-total_bytes // scratch) if scratch > 0 else 1


def slice_rows(tensor: torch.Tensor | None, low: int, high: int) -> torch.Tensor | None:
    """Rows ``[low, high)`` of a tensor that may be absent."""
    return None if tensor is None else tensor[low:high]


def _slice_heads(rows: IndexRange, heads: IndexRange, tensor: torch.Tensor | None) -> Any:
    return None if tensor is None else _narrow(_narrow(tensor, 0, rows), 1, heads)


def _narrow(tensor: torch.Tensor, axis: int, indices: IndexRange) -> torch.Tensor:
    return tensor if tensor.shape[axis] == 1 else tensor.narrow(axis, indices[0], indices[1] - indices[0])


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Bytes of its elements, each counted once even where strides repeat them."""
    return tensor.numel() * tensor.element_size()
