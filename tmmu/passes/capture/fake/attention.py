"""Attention as the target's kernels do it: torch's own choice among flash, memory-efficient and mathematical.

On the ``cpu`` target torch itself chooses while tracing. For ``cuda`` the call is intercepted before torch looks at
the device, and the operator that a GPU would run is called instead; its fake kernel says what it returns and saves.

The choice follows ``sdp_utils.cpp`` of CUDA builds, on a device of compute capability 8.0 or more, with every backend
allowed; the first kernel that applies is taken. It decides what memory the graph holds, for queries
``[batch, heads, L, E]`` and keys of length ``S``:

1. flash (``flash_applies``): saves log-sum-exps ``float32[batch, heads, L]``, no scores. Head sizes are padded to a
   multiple of 8;
2. memory-efficient (``efficient_applies``): the same row; a mask becomes an additive bias, expanded to
   ``[batch, heads, L, S]``;
3. the mathematical form, always possible: the scores ``[batch, heads, L, S]`` and their softmax.

cuDNN attention, which torch prefers on some devices, keeps the same row as flash attention.
"""

from typing import Any, Final

import torch

_FLASH_HEAD_LIMIT: Final = 256
_HALF: Final = (torch.float16, torch.bfloat16)
_MASK_ALIGNMENT: Final = 16
"""The memory-efficient kernel wants rows of the bias to start at multiples of this many elements."""


def cuda_attention(  # noqa: PLR0913, PLR0917 - torch's own signature
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: FBT001, FBT002
) -> torch.Tensor:
    """``scaled_dot_product_attention`` as CUDA builds of torch run it."""
    if flash_applies(query, key, value, attn_mask, is_causal=is_causal, enable_gqa=enable_gqa):
        return _flash(query, key, value, dropout_p=dropout_p, is_causal=is_causal, scale=scale)
    if efficient_applies(query, key, value, attn_mask, enable_gqa=enable_gqa):
        return _efficient(query, key, value, attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale)
    mask = _additive_bias(attn_mask, query)
    return torch.ops.aten._scaled_dot_product_attention_math.default(  # type: ignore[no-any-return]
        query, key, value, mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]


def flash_applies(  # noqa: PLR0913 - what torch's rule looks at
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    is_causal: bool,
    enable_gqa: bool,
) -> bool:
    """Half precision, no mask, equal head sizes up to 256, a square shape when causal."""
    return (
        mask is None
        and _have_one_form(query, key, value)
        and query.dtype in _HALF
        and query.shape[-1] == key.shape[-1] == value.shape[-1] <= _FLASH_HEAD_LIMIT
        and (not is_causal or query.shape[-2] == key.shape[-2])
        and _heads_fit(query, key, value, grouped=enable_gqa)
    )


def efficient_applies(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, *, enable_gqa: bool
) -> bool:
    """Half or single precision, head sizes on 16-byte rows, no grouped heads, no gradient for the mask."""
    row = 16 // query.element_size()
    return (
        _have_one_form(query, key, value)
        and query.dtype in (*_HALF, torch.float32)
        and query.shape[-1] == key.shape[-1]
        and query.shape[-1] % row == 0
        and value.shape[-1] % row == 0
        and not (enable_gqa and query.shape[-3] != key.shape[-3])
        and _heads_fit(query, key, value, grouped=False)
        and not (mask is not None and mask.requires_grad and not mask.is_floating_point())
    )


def _have_one_form(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    is_batched = query.dim() == key.dim() == value.dim() == 4
    return is_batched and query.dtype == key.dtype == value.dtype and all(t.numel() > 0 for t in (query, key, value))


def _heads_fit(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, grouped: bool) -> bool:
    if query.shape[0] != key.shape[0] or key.shape[:2] != value.shape[:2]:
        return False
    heads, kv_heads = query.shape[1], key.shape[1]
    return heads % kv_heads == 0 if grouped else heads == kv_heads


def _flash(query: Any, key: Any, value: Any, **options: Any) -> torch.Tensor:
    size = query.shape[-1]
    scale = options["scale"] if options["scale"] is not None else size**-0.5
    padding = -size % 8
    if padding:
        query, key, value = (torch.constant_pad_nd(t, [0, padding], 0.0) for t in (query, key, value))
    out = torch.ops.aten._scaled_dot_product_flash_attention.default(
        query, key, value, options["dropout_p"], options["is_causal"], scale=scale
    )[0]
    return out[..., :size] if padding else out  # type: ignore[no-any-return]


def _efficient(query: Any, key: Any, value: Any, mask: Any, **options: Any) -> torch.Tensor:
    bias = _align_bias(_additive_bias(mask, query), query, key)
    saves = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    return torch.ops.aten._scaled_dot_product_efficient_attention.default(  # type: ignore[no-any-return]
        query, key, value, bias, saves, options["dropout_p"], options["is_causal"], scale=options["scale"]
    )[0]


def _additive_bias(mask: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor | None:
    """A boolean mask as the bias that torch makes of it: 0 where attended, minus infinity elsewhere."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    shape = mask.shape
    return torch.where(
        mask,
        torch.zeros((), dtype=query.dtype, device=query.device),
        torch.full((), float("-inf"), dtype=query.dtype, device=query.device),
    ).reshape(shape)


def _align_bias(bias: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor | None:
    if bias is None:
        return None
    scores_shape = (*query.shape[:-1], key.shape[-2])
    padding = -bias.shape[-1] % _MASK_ALIGNMENT
    if padding and bias.shape[-1] == scores_shape[-1]:
        bias = torch.constant_pad_nd(bias, [0, padding], 0.0)[..., : scores_shape[-1]]
    return bias.expand(scores_shape)
