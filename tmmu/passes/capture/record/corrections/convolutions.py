"""Strides of what convolutions on a CPU leave: where axes of one element let two memory formats fit, as their kernels.

Torch's fake kernels ask once which format a convolution works in. Real ones bring image and weight into that format
first, and then look at their strides again; groups are convolved one by one and joined. Where one format alone fits,
all of this says the same. By ``Convolution.cpp`` and ``ConvolutionMM2d.cpp`` in torch's sources, without oneDNN, which
is off while a trace and its plan run.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch

from tmmu.passes.capture.record.corrections.layouts import Rule
from tmmu.torch_private import (
    OpOverload,
    convolution_backend,
    convolution_format,
    suggest_memory_format,
)

_aten: Final = torch.ops.aten
_BY_GROUP: Final = frozenset(
    {"Slow2d", "Slow3d", "SlowDilated2d", "SlowDilated3d", "SlowTranspose2d", "SlowTranspose3d"}
)
"""Kernels that know no groups."""
_LIKE_WEIGHT: Final = frozenset({"Slow2d", "SlowTranspose2d"})
"""Kernels whose gradient of the weight has the format of the weight."""
_RESULT, _IMAGE, _WEIGHT = range(3)


class _Work(NamedTuple):
    """A convolution in its kernel's format: fake image and weight, with two axes of places or more."""

    image: torch.Tensor
    weight: torch.Tensor
    backend: Any
    groups: int


def _convolved(args: tuple[Any, ...], result: Any, device: str) -> Any:
    """On a CPU, the result as its kernel leaves it."""
    work = _work_of(args[0], args[1], args[3:9]) if device == "cpu" and len(args) == 9 else None
    return result if work is None else _laid_out(result, _strides(result.shape, work, _RESULT))


def _gradients(args: tuple[Any, ...], result: Any, device: str) -> Any:
    """On a CPU, the gradients of image and weight."""
    work = _work_of(args[1], args[2], args[4:10]) if device == "cpu" and len(args) == 11 else None
    if work is None:
        return result
    rows = zip(result[:2], (_IMAGE, _WEIGHT), strict=True)
    return *(t if t is None else _laid_out(t, _strides(t.shape, work, what)) for t, what in rows), result[2]


def _work_of(image: torch.Tensor, weight: torch.Tensor, options: Sequence[Any]) -> _Work | None:
    """The work of a convolution with stride, padding, dilation, transposed, output padding and groups.

    ``None`` where it is in rows and has one group: no stride along an axis of one element changes that.
    """
    backend = convolution_backend(image, weight, None, *options)
    if weight.dim() == 3:
        image, weight = image.contiguous().unsqueeze(2), weight.unsqueeze(2)
    form = convolution_format(image, weight, backend)
    if form is torch.contiguous_format and options[-1] == 1:
        return None
    return _Work(image.contiguous(memory_format=form), weight.contiguous(memory_format=form), backend, options[-1])


def _strides(shape: Sequence[int], work: _Work, what: int) -> tuple[int, ...]:
    """Of a result of this shape."""
    axis = 0 if what == _WEIGHT else 1
    is_row = len(shape) == 3
    full = [*shape[:2], 1, *shape[2:]] if is_row else [*shape]
    if work.groups == 1 or work.backend.name not in _BY_GROUP:
        form = torch.empty(full, memory_format=_format(work, what))
    else:
        full[axis] //= work.groups
        pieces = work._replace(image=_first_group(work.image, 1, work), weight=_first_group(work.weight, 0, work))
        piece = torch.empty(full, memory_format=_format(pieces, what))
        form = torch.cat([piece] * work.groups, axis)
    return (form.squeeze(2) if is_row else form).stride()


def _format(work: _Work, what: int) -> torch.memory_format:
    if what == _WEIGHT and work.backend.name in _LIKE_WEIGHT:
        return suggest_memory_format(work.weight)
    return convolution_format(work.image, work.weight, work.backend)


def _first_group(tensor: torch.Tensor, axis: int, work: _Work) -> torch.Tensor:
    """The part of a tensor that the first group takes; those of the others have its form."""
    part = tensor.narrow(axis, 0, tensor.shape[axis] // work.groups)
    return part.contiguous(memory_format=suggest_memory_format(part))


def _laid_out(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    return tensor if tensor.stride() == strides else torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype)


CONVOLUTION_RULES: Final[Mapping[OpOverload, Rule]] = {
    _aten.convolution.default: _convolved,
    _aten.convolution_backward.default: _gradients,
}
