"""What a pointwise call is given, in the form that it takes the least time to look at: the same bits."""

from collections.abc import Sequence
from typing import Any, Final

import torch

_KINDS: Final = ((bool, torch.bool), (int, torch.int64), (float, torch.float64))
_WHOLE: Final = 4
"""Bytes of the shortest float that kernels compute in."""


def at_hand(operator: Any, args: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments of a pointwise call that writes into one tensor, an ``out=`` or its own: each number in a tensor's
    place made one that gives the same bits, and all of one shape that have as many elements.

    A number gives way to any tensor of its category or a higher one. So does a tensor without axes, to one with axes;
    where none of the result's dtype has axes, the two differ, and the number stays: but whole ones among ``int64``.
    """
    arguments = operator._schema.arguments
    results = [
        arg for arg, a in zip(args, arguments, strict=True) if a.alias_info is not None and a.alias_info.is_write
    ]
    if torch.Tag.pointwise not in operator.tags or len(results) != 1:
        return tuple(args)
    dtype = results[0].dtype
    inputs = [arg for arg, a in zip(args, arguments, strict=True) if isinstance(arg, torch.Tensor) and not a.is_out]
    if not any(arg.dim() and arg.dtype == dtype for arg in inputs) and not _all_whole(args, inputs):
        return tuple(args)
    wanted = [str(argument.type) == "Tensor" for argument in arguments]
    made = [_made(arg, dtype) if here else arg for arg, here in zip(args, wanted, strict=True)]
    return tuple(_shaped(arg, results[0]) if here else arg for arg, here in zip(made, wanted, strict=True))


def _all_whole(args: Sequence[Any], inputs: Sequence[torch.Tensor]) -> bool:
    """Whether every tensor is of ``int64``, and every number one that is."""
    numbers = [arg for arg in args if isinstance(arg, (bool, int, float))]
    return all(arg.dtype == torch.int64 for arg in inputs) and all(type(number) is int for number in numbers)


def _made(arg: Any, dtype: torch.dtype) -> Any:
    """Of the result's dtype, which saves a cast per call; kernels of short floats compute with the number itself."""
    for kind, made in _KINDS:
        if isinstance(arg, kind):
            if _rank(made) > _rank(dtype):
                return arg
            short = dtype.is_floating_point and dtype.itemsize < _WHOLE
            whole = torch.scalar_tensor(arg, dtype=made)
            return whole if short else whole.to(dtype)
    return arg


def _shaped(arg: Any, result: torch.Tensor) -> Any:
    """As a window of the result's shape where it has as many elements: nothing is left to be spread."""
    if not isinstance(arg, torch.Tensor) or arg.shape == result.shape or arg.numel() != result.numel():
        return arg
    alike = arg.is_contiguous() and (arg.dim() > 0 or arg.dtype == result.dtype)
    return arg.view(result.shape) if alike else arg


def _rank(dtype: torch.dtype) -> int:
    if dtype == torch.bool:
        return 0
    return 2 + dtype.is_complex if dtype.is_floating_point or dtype.is_complex else 1
