"""Statistics of norms: real kernels keep them, and their gradients, in other dtypes than fake ones say."""

from collections.abc import Mapping
from typing import Any, Final

import torch

from tmmu.passes.capture.record.corrections.layouts import LAYOUT_RULES, Rule, contiguous
from tmmu.torch_private import OpOverload

_aten: Final = torch.ops.aten
_HALF: Final = (torch.float16, torch.bfloat16)


def _layer_normalized(args: tuple[Any, ...], result: Any, device: str) -> Any:
    """Statistics are in single precision on a GPU, and on a CPU where the weight is in single precision."""
    result = contiguous(args, result, device)
    return _with_single_statistics(result) if _is_single(args[0], args[2:3], device) else result


def _batch_normalized(args: tuple[Any, ...], result: Any, device: str) -> Any:
    """As of a layer norm; on a CPU also where the running statistics are in single precision."""
    return _single_statistics(args, LAYOUT_RULES[_aten.native_batch_norm.default](args, result, device), device)


def _single_statistics(args: tuple[Any, ...], result: Any, device: str) -> Any:
    return _with_single_statistics(result) if _is_single(args[0], args[1:5], device) else result


def _group_normalized(args: tuple[Any, ...], result: Any, device: str) -> Any:
    """Statistics are in single precision where the weight is, on any device."""
    result = LAYOUT_RULES[_aten.native_group_norm.default](args, result, device)
    return _with_single_statistics(result) if _is_single(args[0], args[1:3], "cpu") else result


def _group_gradients(args: tuple[Any, ...], result: Any, device: str) -> Any:
    """The gradient of a group is in the group's dtype."""
    gradient, *rest = LAYOUT_RULES[_aten.native_group_norm_backward.default](args, result, device)
    if gradient is not None and gradient.dtype is not args[1].dtype:
        gradient = torch.empty_strided(gradient.shape, gradient.stride(), dtype=args[1].dtype)
    return gradient, *rest


def _is_single(tensor: torch.Tensor, others: tuple[Any, ...], device: str) -> bool:
    """Whether statistics of a half-precision tensor are in single precision, as all are on a GPU."""
    return tensor.dtype in _HALF and (
        device == "cuda" or any(isinstance(o, torch.Tensor) and o.dtype is torch.float32 for o in others)
    )


def _with_single_statistics(result: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    out, *statistics = result
    return out, *(torch.empty_strided(t.shape, t.stride(), dtype=torch.float32) for t in statistics)


NORM_RULES: Final[Mapping[OpOverload, Rule]] = {
    _aten.native_layer_norm.default: _layer_normalized,
    _aten.native_batch_norm.default: _batch_normalized,
    _aten._native_batch_norm_legit.default: _single_statistics,
    _aten._native_batch_norm_legit.no_stats: _single_statistics,
    _aten.native_group_norm.default: _group_normalized,
    _aten.native_group_norm_backward.default: _group_gradients,
}
"""Results with their dtypes and layouts."""
