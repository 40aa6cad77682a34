"""A window on a tensor as views that a compiler sees through: slices, permutations, reshapes, expansions.

The tensor is itself a dense window of a buffer, the *base*. Views are logical, so they are right for any tensor of the
base's shape, however it lies in memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, TypeAlias

import torch

from tmmu.ir.windows import is_dense

ViewStep: TypeAlias = tuple[str, tuple[Any, ...]]
"""A method of a tensor, and its arguments."""


@dataclass(frozen=True, slots=True, order=True)
class Strided:
    """A strided window: ``offset``, ``shape`` and ``stride`` in elements of ``dtype``."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    offset: int = 0


def view_steps(base: Strided, window: Strided) -> tuple[ViewStep, ...] | None:
    """How to view ``window`` in a tensor that is ``base``; ``None`` where no chain of views is known.

    Offsets count from where the base's does.
    """
    if base == window:
        return ()
    if base.dtype != window.dtype or not is_dense(base.shape, base.stride):
        return None
    offset = window.offset - base.offset
    if offset == 0 and _is_contiguous(base) and _is_contiguous(window):
        return (("reshape", (window.shape,)),) if prod(base.shape) == prod(window.shape) else None
    return _through_memory(base, window, offset)


def apply_views(tensor: torch.Tensor, steps: Sequence[ViewStep]) -> torch.Tensor:
    """The tensor after these steps."""
    for method, arguments in steps:
        tensor = getattr(tensor, method)(*arguments)
    return tensor


def is_reshaped(base: Strided, window: Strided) -> bool:
    """Whether a window is all of the base, in its shape or both in the order of memory."""
    same = base.dtype == window.dtype and base.offset == window.offset and prod(base.shape) == prod(window.shape)
    return base == window or (same and _is_contiguous(base) and _is_contiguous(window))


def memory_order(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """Axes of a dense window from the outermost in memory to the innermost; those of length 1 first."""
    return tuple(sorted(range(len(shape)), key=lambda axis: (shape[axis] != 1, -stride[axis], axis)))


def _is_contiguous(window: Strided) -> bool:
    step = 1
    for length, stride in zip(reversed(window.shape), reversed(window.stride), strict=True):
        if length != 1 and stride != step:
            return False
        step *= length
    return True


def _through_memory(base: Strided, window: Strided, offset: int) -> tuple[ViewStep, ...] | None:
    """By way of the base's elements in the order of memory, cut into the window's axes, each then sliced.

    The axes of the window, from the widest stride to the narrowest, must be digits of a place in memory.
    """
    axes = [axis for axis in range(len(window.shape)) if window.shape[axis] != 1 and window.stride[axis] != 0]
    axes.sort(key=lambda axis: (-window.stride[axis], axis))
    total = prod(base.shape)
    strides = [window.stride[axis] for axis in axes]
    if not total or 0 in window.shape or any(outer % inner for outer, inner in pairwise(strides)):
        return None
    first = strides[0] if strides else 1
    if total % first:
        return None
    radices = [total // first, *(outer // inner for outer, inner in pairwise(strides))]
    narrowest = strides[-1] if strides else total
    steps: list[ViewStep] = []
    order = memory_order(base.shape, base.stride)
    if order != tuple(range(len(order))):
        steps.append(("permute", (order,)))
    steps.append(("reshape", ((*radices[: len(axes)], narrowest),)))
    rest = offset
    for place, axis in enumerate(axes):
        begin, rest = divmod(rest, window.stride[axis])
        if begin + window.shape[axis] > radices[place]:
            return None
        if (begin, window.shape[axis]) != (0, radices[place]):
            steps.append(("narrow", (place, begin, window.shape[axis])))
    if rest >= narrowest:
        return None
    steps.append(("select", (len(axes), rest)))
    return (*steps, *_arrange(window, axes))


def _arrange(window: Strided, axes: Sequence[int]) -> list[ViewStep]:
    """From the axes in the order of their strides to the window's own, with those of length 1 and of stride 0."""
    steps: list[ViewStep] = []
    order = tuple(axes.index(axis) for axis in sorted(axes))
    if order != tuple(range(len(order))):
        steps.append(("permute", (order,)))
    one = tuple(n if axis in axes else 1 for axis, n in enumerate(window.shape))
    if len(one) != len(axes):
        steps.append(("reshape", (one,)))
    if one != window.shape:
        steps.append(("expand", (window.shape,)))
    return steps
