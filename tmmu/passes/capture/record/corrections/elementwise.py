"""Strides that torch's iterator over elements gives results on real tensors; meta tensors have some otherwise."""

from functools import cache
from typing import Any, Final

import torch

from tmmu.torch_private import OpOverload, disable_current_modes, schema_of

_aten: Final = torch.ops.aten

FOLLOWS: Final = frozenset(
    {
        *(_aten.copysign.Tensor, _aten.floor_divide.default, _aten.special_xlog1py.default, _aten.xlogy.Tensor),
        *(_aten.elu_backward.default, _aten.hardsigmoid_backward.default, _aten.hardswish_backward.default),
        *(_aten.hardtanh_backward.default, _aten.logit_backward.default, _aten.native_dropout_backward.default),
        _aten.softplus_backward.default,
    }
)
"""Elementwise operators whose real kernels lay their result out as their arguments are, the first before the others."""
_GRADIENTS: Final = frozenset(
    {
        *(_aten.gelu_backward.default, _aten.leaky_relu_backward.default, _aten.sigmoid_backward.default),
        *(_aten.silu_backward.default, _aten.tanh_backward.default, _aten.threshold_backward.default),
    }
)
_UNTAGGED: Final = frozenset(
    {_aten.mse_loss.default, _aten.smooth_l1_loss.default, _aten.polar.default, _aten.complex.default}
)
"""More elementwise operators, which torch does not tag as such."""


@cache
def is_elementwise(func: OpOverload) -> bool:
    """Whether torch's iterator over elements makes its one result; copies keep a memory format of their own."""
    signature = schema_of(func)
    if any(argument.name == "memory_format" for argument in signature.arguments):
        return False
    makes = len(signature.returns) == 1 and signature.returns[0].alias_info is None and not signature.is_mutable
    return makes and (torch.Tag.pointwise in func.tags or func in FOLLOWS | _GRADIENTS | _UNTAGGED)


def iterated(func: OpOverload, args: tuple[Any, ...], result: Any) -> Any:
    """The result of an elementwise operator with the strides that torch's iterator gives it on real tensors.

    On meta tensors, and in fake kernels of their own, strides along axes of one element come out otherwise. Arguments
    of one shape are one run of elements where each is contiguous, and are followed where all have the same strides
    without gaps; else the iterator sorts the axes, for which a number is a tensor without axes.
    """
    if not isinstance(result, torch.Tensor):
        return result
    tensors = [arg for arg, place in zip(args, schema_of(func).arguments, strict=False) if _is_walked(arg, place)]
    shaped = [tensor for tensor in tensors if isinstance(tensor, torch.Tensor)]
    if not shaped or (is_canonical(result) and all(map(is_canonical, shaped))):
        return result
    stride = strides_of_run(result.shape, shaped) if len(shaped) == len(tensors) else None
    if stride is None and 1 in result.shape and func not in _GRADIENTS:
        stride = strides_of_iterator(tensors)
    if stride is None or stride == result.stride():
        return result
    return torch.empty_strided(result.shape, stride, dtype=result.dtype)


def _is_walked(arg: Any, place: Any) -> bool:
    """Whether the iterator walks this argument: a tensor, or the number that stands in for one."""
    kind = str(place.type)
    return kind == "Tensor" or place.name == "other" or (kind == "Optional[Tensor]" and arg is not None)


def strides_beside(tensors: list[torch.Tensor], result: torch.Tensor) -> torch.Tensor:
    """The result with the strides that the iterator gives it beside these tensors."""
    stride = strides_of_run(result.shape, tensors) or strides_of_iterator(list(tensors))
    return result if result.stride() == stride else torch.empty_strided(result.shape, stride, dtype=result.dtype)


def strides_of_run(shape: torch.Size, tensors: list[torch.Tensor]) -> tuple[int, ...] | None:
    """The strides of a result whose arguments are walked as one run of elements; None where they are not."""
    if any(tensor.shape != shape for tensor in tensors):
        return None
    formats = (torch.contiguous_format, torch.channels_last) if len(shape) == 4 else (torch.contiguous_format,)
    for memory_format in formats:
        if all(tensor.is_contiguous(memory_format=memory_format) for tensor in tensors):
            with disable_current_modes():
                return torch.empty(shape, memory_format=memory_format, device="meta").stride()
    (stride, *others) = {tensor.stride() for tensor in tensors}
    return None if others or not is_dense(shape, stride) else stride


def is_dense(shape: torch.Size, stride: tuple[int, ...]) -> bool:
    """Whether the elements lie without gaps and without overlap, in some order of the axes."""
    step = 1
    for size, length in sorted((step, n) for n, step in zip(shape, stride, strict=True) if n > 1):
        if size != step:
            return False
        step *= length
    return True


def strides_of_iterator(tensors: list[Any]) -> tuple[int, ...]:
    """The strides that the iterator gives a result of these arguments where it has to sort the axes."""
    with disable_current_modes():
        shapes = [(t.shape, t.stride()) if isinstance(t, torch.Tensor) else ((), ()) for t in tensors]
        forms = [torch.empty_strided(shape, stride, device="meta") for shape, stride in shapes]
        if len(forms) == 3:
            return torch.addcmul(*forms).stride()
        return sum(forms[2:], start=forms[0].add(forms[-1 if len(forms) < 2 else 1])).stride()


def is_canonical(tensor: torch.Tensor) -> bool:
    """Whether it is contiguous, and each axis of one element has the stride that a new tensor gives it."""
    step = 1
    for n, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if stride != step:
            return False
        step *= max(n, 1)
    return True


def following(args: tuple[Any, ...], result: torch.Tensor, device: str) -> torch.Tensor:  # noqa: ARG001
    """The result laid out as torch's iterator over elements does it for these arguments."""
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if all(map(is_canonical, tensors)):
        return result
    with disable_current_modes():
        forms = [torch.empty_strided(tensor.shape, tensor.stride(), device="meta") for tensor in tensors]
        stride = sum(forms[1:], start=forms[0].add(1)).stride()
    if result.stride() == stride:
        return result
    return torch.empty_strided(result.shape, stride, dtype=result.dtype)
