"""Attention as the target's kernels do it: torch's own choice among flash, memory-efficient and mathematical.

On the ``cpu`` target torch itself chooses while tracing. For ``cuda`` the call is intercepted before torch looks at
the device, and the operator that a GPU would run is called instead; its fake kernel says what it returns and saves.

The choice follows ``sdp_utils.cpp`` of CUDA builds, on a device of compute capability 8.0 or more. Backends are tried
in torch's order of priority; the first that is allowed and applies is taken, where none is, the call fails as it does
on the device. What is allowed and in which order is read when the call is traced, so ``sdpa_kernel``, the switches
``torch.backends.cuda.enable_*_sdp`` and their like decide the plan. The choice decides what memory the graph holds,
for queries ``[batch, heads, L, E]`` and keys of length ``S``:

- flash (``flash_applies``): saves log-sum-exps ``float32[batch, heads, L]``, no scores. Head sizes are padded to a
  multiple of 8;
- memory-efficient (``efficient_applies``): the same row; a mask becomes an additive bias, expanded to
  ``[batch, heads, L, S]``;
- cuDNN (``cudnn_applies``): the same row, for the gradient alone. By default it comes after the mathematical form, so
  that it is never taken unasked; on some devices torch itself moves it to the front;
- the mathematical form, always possible: the scores ``[batch, heads, L, S]`` and their softmax.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch.nn.attention import SDPBackend

from tmmu.torch_private import attention_priority

_FLASH_HEAD_LIMIT: Final = 256
_CUDNN_HEAD_LIMIT: Final = 128
_HALF: Final = (torch.float16, torch.bfloat16)
_MASK_ALIGNMENT: Final = 16
"""The memory-efficient kernel wants rows of the bias to start at multiples of this many elements."""


class NoAttentionKernelError(RuntimeError):
    """No backend that the model allows can run this call: torch raises a ``RuntimeError`` on the device."""


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """The arguments of ``scaled_dot_product_attention``."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    dropout_p: float
    is_causal: bool
    scale: float | None
    enable_gqa: bool

    @property
    def needs_gradient(self) -> bool:
        """Whether the backward pass will ask for what the kernel saves."""
        return torch.is_grad_enabled() and any(t.requires_grad for t in (self.query, self.key, self.value))


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
    """``scaled_dot_product_attention`` as CUDA builds of torch run it; ``NoAttentionKernelError`` where none can."""
    call = AttentionCall(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    allowed = list(_allowed_backends())
    for backend in allowed:
        applies, run = _BACKENDS[backend]
        if applies(call):
            return run(call)
    names = ", ".join(backend.name for backend in allowed) or "none"
    raise NoAttentionKernelError(f"no attention kernel for {_form(call)} among those that are allowed: {names}")


def _allowed_backends() -> Iterator[SDPBackend]:
    """By priority, those that the user's switches leave on."""
    for backend in map(SDPBackend, attention_priority()):
        if backend in _SWITCHES and _SWITCHES[backend]():
            yield backend


def _form(call: AttentionCall) -> str:
    name = str(call.query.dtype).removeprefix("torch.")
    return f"{name}{list(call.query.shape)}{' with a mask' if call.mask is not None else ''}"


def flash_applies(call: AttentionCall) -> bool:
    """Half precision, no mask, equal head sizes up to 256, a square shape when causal."""
    query, key, value = call.query, call.key, call.value
    return (
        call.mask is None
        and _have_one_form(query, key, value)
        and query.dtype in _HALF
        and query.shape[-1] == key.shape[-1] == value.shape[-1] <= _FLASH_HEAD_LIMIT
        and (not call.is_causal or query.shape[-2] == key.shape[-2])
        and _heads_fit(query, key, value, grouped=call.enable_gqa)
    )


def efficient_applies(call: AttentionCall) -> bool:
    """Half or single precision, head sizes on 16-byte rows, no grouped heads, no gradient for the mask."""
    query, key, value, mask = call.query, call.key, call.value, call.mask
    row = 16 // query.element_size()
    return (
        _have_one_form(query, key, value)
        and query.dtype in (*_HALF, torch.float32)
        and query.shape[-1] == key.shape[-1]
        and query.shape[-1] % row == 0
        and value.shape[-1] % row == 0
        and not (call.enable_gqa and query.shape[-3] != key.shape[-3])
        and _heads_fit(query, key, value, grouped=False)
        and not (mask is not None and mask.requires_grad and not mask.is_floating_point())
    )


def cudnn_applies(call: AttentionCall) -> bool:
    """Half precision, head sizes up to 128 in multiples of 8, no gradient for the mask, more than one key."""
    query, key, value, mask = call.query, call.key, call.value, call.mask
    sizes = (query.shape[-1], value.shape[-1])
    return (
        _have_one_form(query, key, value)
        and query.dtype in _HALF
        and query.shape[-1] == key.shape[-1]
        and all(size <= _CUDNN_HEAD_LIMIT and size % 8 == 0 for size in sizes)
        and key.shape[-2] > 1
        and not (mask is not None and (mask.requires_grad or call.is_causal))
        and _heads_fit(query, key, value, grouped=call.enable_gqa)
    )


def _have_one_form(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    is_batched = query.dim() == key.dim() == value.dim() == 4
    return is_batched and query.dtype == key.dtype == value.dtype and all(t.numel() > 0 for t in (query, key, value))


def _heads_fit(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, grouped: bool) -> bool:
    if query.shape[0] != key.shape[0] or key.shape[:2] != value.shape[:2]:
        return False
    heads, kv_heads = query.shape[1], key.shape[1]
    return heads % kv_heads == 0 if grouped else heads == kv_heads


def _flash(call: AttentionCall) -> torch.Tensor:
    size = call.query.shape[-1]
    scale = call.scale if call.scale is not None else size**-0.5
    padding = -size % 8
    query, key, value = call.query, call.key, call.value
    if padding:
        query, key, value = (torch.constant_pad_nd(t, [0, padding], 0.0) for t in (query, key, value))
    out = torch.ops.aten._scaled_dot_product_flash_attention.default(
        query, key, value, call.dropout_p, call.is_causal, scale=scale
    )[0]
    return out[..., :size] if padding else out  # type: ignore[no-any-return]


def _efficient(call: AttentionCall) -> torch.Tensor:
    query, key = call.query, call.key
    bias = _align_bias(_additive_bias(call.mask, query), query, key)
    return torch.ops.aten._scaled_dot_product_efficient_attention.default(  # type: ignore[no-any-return]
        query, key, call.value, bias, call.needs_gradient, call.dropout_p, call.is_causal, scale=call.scale
    )[0]


def _cudnn(call: AttentionCall) -> torch.Tensor:
    bias = _additive_bias(call.mask, call.query)
    arguments = (call.query, call.key, call.value, bias, call.needs_gradient, call.dropout_p, call.is_causal)
    return torch.ops.aten._scaled_dot_product_cudnn_attention.default(*arguments, scale=call.scale)[0]  # type: ignore[no-any-return]


def _mathematical(call: AttentionCall) -> torch.Tensor:
    mask = _additive_bias(call.mask, call.query)
    arguments = (call.query, call.key, call.value, mask, call.dropout_p, call.is_causal, None)
    return torch.ops.aten._scaled_dot_product_attention_math.default(  # type: ignore[no-any-return]
        *arguments, scale=call.scale, enable_gqa=call.enable_gqa
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


_BACKENDS: Final[
    Mapping[SDPBackend, tuple[Callable[[AttentionCall], bool], Callable[[AttentionCall], torch.Tensor]]]
] = {
    SDPBackend.FLASH_ATTENTION: (flash_applies, _flash),
    SDPBackend.EFFICIENT_ATTENTION: (efficient_applies, _efficient),
    SDPBackend.CUDNN_ATTENTION: (cudnn_applies, _cudnn),
    SDPBackend.MATH: (lambda _: True, _mathematical),
}
_SWITCHES: Final[Mapping[SDPBackend, Callable[[], bool]]] = {
    SDPBackend.FLASH_ATTENTION: torch.backends.cuda.flash_sdp_enabled,
    SDPBackend.EFFICIENT_ATTENTION: torch.backends.cuda.mem_efficient_sdp_enabled,
    SDPBackend.CUDNN_ATTENTION: torch.backends.cuda.cudnn_sdp_enabled,
    SDPBackend.MATH: torch.backends.cuda.math_sdp_enabled,
}
