"""Composites that are recorded whole, in parts that autograd knows: those into which eager takes them on a cpu."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from tmmu.errors import UnsupportedOp
from tmmu.torch_private import OpOverload

_aten: Final = torch.ops.aten


def differentiable(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the operator returns; ``UNSUPPORTED_OP`` for one whose gradients are not recorded."""
    rule = _RULES.get(operator)
    if rule is None:
        raise UnsupportedOp(f"gradients of {operator} are not recorded", fix="train it on the cpu")
    return rule(*args, **kwargs)


def _dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:  # noqa: FBT001 - torch's own signature
    if not train or p == 0 or x.numel() == 0:
        return x
    if p == 1:
        return x.mul(torch.zeros((), dtype=x.dtype, device=x.device))
    return x * torch.empty_like(x, requires_grad=False).bernoulli_(1 - p).div_(1 - p)


def _normalize(kernel: OpOverload) -> Callable[..., torch.Tensor]:
    def run(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        result: torch.Tensor = kernel(x if dtype is None else x.to(dtype), dim, False)  # noqa: FBT003 - as the schema
        return result

    return run


def _attend(  # noqa: PLR0913, PLR0917 - torch's own signature
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """By one kernel where the cpu has one for these forms, else in its mathematical parts."""
    forms = [None if tensor is None else _stand_in(tensor) for tensor in (query, key, value, attn_mask)]
    options = {"scale": scale, "enable_gqa": enable_gqa}
    has_kernel = _aten._fused_sdp_choice.default(*forms, dropout_p, is_causal, **options)
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        zeros = torch.zeros_like(attn_mask, dtype=query.dtype)
        attn_mask = zeros.masked_fill_(attn_mask.logical_not(), -torch.inf)
    if has_kernel:
        kernel = _aten._scaled_dot_product_flash_attention_for_cpu.default
        return kernel(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]  # type: ignore[no-any-return]
    parts = _aten._scaled_dot_product_attention_math.default
    return parts(query, key, value, attn_mask, dropout_p, is_causal, None, **options)[0]  # type: ignore[no-any-return]


def _stand_in(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor here of the same form, whose memory nobody touches."""
    form = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return form.requires_grad_(tensor.requires_grad)


_RULES: Final[Mapping[OpOverload, Callable[..., Any]]] = {
    _aten.dropout.default: _dropout,
    _aten.log_softmax.int: _normalize(_aten._log_softmax.default),
    _aten.scaled_dot_product_attention.default: _attend,
    _aten.softmax.int: _normalize(_aten._softmax.default),
}
