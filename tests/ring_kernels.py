"""The attention kernels of a GPU that ring attention takes, computed by NumPy on a CPU, which torch has none of.

Results have the shapes, strides and dtypes that torch's meta kernels say of the GPU's; they are all that is allocated
of torch's memory. Importing this registers the kernels for as long as the process lives.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.nn import functional

_aten: Any = torch.ops.aten
_library = torch.library.Library("aten", "IMPL")
Array = Any


def _results(operator: Any, *args: Any, **kwargs: Any) -> list[Any]:
    """Empty results on the CPU, as the operator's meta kernel lays them out."""

    def on_meta(value: Any) -> Any:
        return value.to("meta") if isinstance(value, torch.Tensor) else value

    def on_cpu(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)

    results = operator(*map(on_meta, args), **{name: on_meta(value) for name, value in kwargs.items()})
    return [on_cpu(result) for result in results]


def _array(tensor: torch.Tensor) -> Array:
    """``float64`` values; half precision, which NumPy lacks, by its bits."""
    if tensor.dtype is torch.bfloat16:
        bits = tensor.detach().view(torch.uint16).numpy().astype(np.uint32) << 16
        return bits.view(np.float32).astype(np.float64)
    return tensor.detach().numpy().astype(np.float64)


def _fill(tensor: torch.Tensor, values: Array) -> None:
    tensor.copy_(torch.from_numpy(np.ascontiguousarray(values)))


def _scores(query: Array, key: Array, scale: float | None, *, is_causal: bool) -> Array:
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = np.einsum("bhqd,bhkd->bhqk", query, key) * factor
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    return scores


def _attend(outputs: list[Any], query: Any, key: Any, value: Any, scale: float | None, *, is_causal: bool) -> Any:
    """Fills output and log-sum-exps, the first two."""
    scores = _scores(_array(query), _array(key), scale, is_causal=is_causal)
    most = scores.max(-1, keepdims=True)
    weights = np.exp(scores - most)
    sums = weights.sum(-1, keepdims=True)
    _fill(outputs[0], np.einsum("bhqk,bhkd->bhqd", weights / sums, _array(value)))
    _fill(outputs[1][..., : query.shape[2]], (most + np.log(sums))[..., 0])
    return tuple(outputs)


def _gradients(grads: list[Any], grad: Any, query: Any, key: Any, value: Any, out: Any, sums: Any, scale: float | None,
               *, is_causal: bool) -> Any:  # fmt: skip
    """Fills the gradients of query, key and value by the log-sum-exps of the whole sequence, which are given."""
    q, k, v, g = map(_array, (query, key, value, grad))
    weights = np.exp(_scores(q, k, scale, is_causal=is_causal) - _array(sums)[..., : q.shape[2], None])
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    inner = np.einsum("bhqd,bhkd->bhqk", g, v) - (g * _array(out)).sum(-1, keepdims=True)
    scores = weights * inner * factor
    _fill(grads[0], np.einsum("bhqk,bhkd->bhqd", scores, k))
    _fill(grads[1], np.einsum("bhqk,bhqd->bhkd", scores, q))
    _fill(grads[2], np.einsum("bhqk,bhqd->bhkd", weights, g))
    return tuple(grads)


def _flash(query: Any, key: Any, value: Any, dropout_p: float = 0.0, is_causal: bool = False,
           return_debug_mask: bool = False, *, scale: float | None = None) -> Any:  # fmt: skip
    outputs = _results(_aten._scaled_dot_product_flash_attention.default, query, key, value, dropout_p, is_causal,
                       return_debug_mask, scale=scale)  # fmt: skip
    return _attend(outputs, query, key, value, scale, is_causal=is_causal)


def _flash_backward(grad_out: Any, query: Any, key: Any, value: Any, out: Any, logsumexp: Any, *rest: Any,
                    scale: float | None = None) -> Any:  # fmt: skip
    given = (grad_out, query, key, value, out, logsumexp, *rest)
    grads = _results(_aten._scaled_dot_product_flash_attention_backward.default, *given, scale=scale)
    return _gradients(grads, grad_out, query, key, value, out, logsumexp, scale, is_causal=rest[5])


def _efficient(query: Any, key: Any, value: Any, attn_bias: Any, compute_log_sumexp: bool, dropout_p: float = 0.0,
               is_causal: bool = False, *, scale: float | None = None) -> Any:  # fmt: skip
    outputs = _results(_aten._scaled_dot_product_efficient_attention.default, query, key, value, attn_bias,
                       compute_log_sumexp, dropout_p, is_causal, scale=scale)  # fmt: skip
    return _attend(outputs, query, key, value, scale, is_causal=is_causal)


def _efficient_backward(grad_out_: Any, query: Any, key: Any, value: Any, attn_bias: Any, out: Any, logsumexp: Any,
                        philox_seed: Any, philox_offset: Any, dropout_p: float, grad_input_mask: Any,
                        is_causal: bool = False, *, scale: float | None = None) -> Any:  # fmt: skip
    given = (grad_out_, query, key, value, attn_bias, out, logsumexp, philox_seed, philox_offset, dropout_p)
    grads = _results(_aten._scaled_dot_product_efficient_attention_backward.default, *given, grad_input_mask,
                     is_causal, scale=scale)  # fmt: skip
    return _gradients(grads, grad_out_, query, key, value, out, logsumexp, scale, is_causal=is_causal)


for _name, _kernel in {
    "_scaled_dot_product_flash_attention": _flash,
    "_scaled_dot_product_flash_attention_backward": _flash_backward,
    "_scaled_dot_product_efficient_attention": _efficient,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
}.items():
    _library.impl(_name, _kernel, "CPU")


def scaled_dot_product_attention(query: Any, key: Any, value: Any, *, is_causal: bool = False) -> Any:
    """The first kernel that applies, as torch chooses on a GPU."""
    if query.dtype is torch.float32:
        needs_gradient = torch.is_grad_enabled() and query.requires_grad
        return _aten._scaled_dot_product_efficient_attention(query, key, value, None, needs_gradient, 0.0, is_causal)[0]
    scale = query.shape[-1] ** -0.5
    return _aten._scaled_dot_product_flash_attention(query, key, value, 0.0, is_causal, scale=scale)[0]


@contextmanager
def attention_of_gpu() -> Iterator[None]:
    """Block in which ``scaled_dot_product_attention`` takes these kernels."""
    original = functional.scaled_dot_product_attention
    functional.scaled_dot_product_attention = scaled_dot_product_attention
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = original
