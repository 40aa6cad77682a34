"""Operators without an ``out=`` overload of their own, done where the result belongs by other ones: the same bits.

A row gets the call's arguments by name and the tensor to write, and gives the code, or ``None`` where it cannot.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import torch

from tmmu.runtime.kernels.code import Code, Instruction, instruction
from tmmu.runtime.kernels.convolutions import convolution_in_parts
from tmmu.runtime.kernels.gradients import (
    attention_gradient_in_parts,
    convolution_gradient_in_parts,
    embedding_gradient_in_parts,
    normalization_gradient_in_parts,
)
from tmmu.runtime.kernels.parts import (
    MOST_PARTS,
    attention_in_parts,
    normalization_in_parts,
    softmax_in_parts,
)
from tmmu.runtime.kernels.products import product, product_added

Arguments: TypeAlias = Mapping[str, Any]
Lowering: TypeAlias = Callable[[Arguments, torch.Tensor], Code | None]
InParts: TypeAlias = Callable[[Arguments, Sequence[torch.Tensor | None], int], Code | None]

aten = torch.ops.aten
MOST_JOINED: Final = 8
"""Tensors of a concatenation that are copied one by one."""


def _leave(given: Arguments, view: torch.Tensor) -> Code:  # noqa: ARG001
    return ()


def _zero(given: Arguments, view: torch.Tensor) -> Code:  # noqa: ARG001
    return (instruction(aten.zero_.default, view),)


def _ones(given: Arguments, view: torch.Tensor) -> Code:  # noqa: ARG001
    return (instruction(aten.fill_.Scalar, view, 1),)


def _fill(name: str) -> Lowering:
    return lambda given, view: (instruction(aten.fill_.Scalar, view, given[name]),)


def _copy(given: Arguments, view: torch.Tensor) -> Code:
    return (_copied(view, given["self"]),)


def _copied(view: torch.Tensor, source: torch.Tensor) -> Instruction:
    return instruction(aten.copy_.default, view, source)


def _relu(given: Arguments, view: torch.Tensor) -> Code:
    return (instruction(aten.clamp_min.out, given["self"], 0, out=view),)


def _scalar(operator: Any) -> Lowering:
    """An operator with a number, as the same one with a tensor, which is what it is made of."""

    def run(given: Arguments, view: torch.Tensor) -> Code:
        rest = {name: value for name, value in given.items() if name not in ("self", "other")}
        return (instruction(operator, given["self"], given["other"], **rest, out=view),)

    return run


def _embedding(given: Arguments, view: torch.Tensor) -> Code | None:
    """Rows picked by flat indices, as the operator itself does it; by each run of them where they lie apart."""
    weight, indices = given["weight"], given["indices"]
    if not (view.is_contiguous() and weight.dim() == 2 and indices.dim() and indices.numel()):
        return None
    if indices.is_contiguous():
        runs = [(indices.view(-1), view.view(indices.numel(), weight.shape[1]))]
    elif indices.dim() == 2 and len(indices) <= MOST_PARTS and indices.stride(1) == 1:
        runs = list(zip(indices, view, strict=True))
    else:
        return None
    return tuple(instruction(aten.index_select.out, weight, 0, run, out=rows) for run, rows in runs)


def _embedding_gradient(given: Arguments, view: torch.Tensor) -> Code | None:
    """Rows added where their indices point, in the order in which the operator adds them; none to the padding's.

    Not of short floats: the operator adds those in single precision.
    """
    gradient, indices, padding = given["grad_output"], given["indices"], given["padding_idx"]
    plain = indices.is_contiguous() and gradient.is_contiguous() and gradient.shape[-1] > 0
    if given["scale_grad_by_freq"] or gradient.dtype.itemsize < 4 or not plain:
        return None
    rows = gradient.view(indices.numel(), gradient.shape[-1])
    code = (
        instruction(aten.zero_.default, view),
        instruction(aten.index_add_.default, view, 0, indices.view(-1), rows),
    )
    return code if padding < 0 else (*code, instruction(aten.zero_.default, view[padding]))


def _slice_gradient(given: Arguments, view: torch.Tensor) -> Code:
    """The gradient where the slice was, and zeros elsewhere."""
    place = aten.slice.Tensor(view, *(given[name] for name in ("dim", "start", "end", "step")))
    return (instruction(aten.zero_.default, view), _copied(place, given["grad_output"]))


def _select_gradient(given: Arguments, view: torch.Tensor) -> Code:
    place = view.select(given["dim"], given["index"])
    return (instruction(aten.zero_.default, view), _copied(place, given["grad_output"]))


def _masked_fill(given: Arguments, view: torch.Tensor) -> Code:
    value = given["value"]
    change = aten.masked_fill_.Tensor if isinstance(value, torch.Tensor) else aten.masked_fill_.Scalar
    return (_copied(view, given["self"]), instruction(change, view, given["mask"], value))


def _cat(given: Arguments, view: torch.Tensor) -> Code | None:
    """Copies, where the operator would set up as many for tensors that are not contiguous."""
    tensors, axis = given["tensors"], given.get("dim", 0)
    few = view.is_cpu and len(tensors) <= MOST_JOINED and not all(one.is_contiguous() for one in tensors)
    if not few or any(one.dtype != view.dtype or one.dim() != view.dim() for one in tensors):
        return None
    parts = view.split_with_sizes([one.shape[axis] for one in tensors], axis)
    return tuple(_copied(part, one) for part, one in zip(parts, tensors, strict=True))


def _mean(given: Arguments, view: torch.Tensor) -> Code | None:
    """The sum, divided where it lies: the operator makes a tensor of the count each time, which takes longer."""
    x, axes = given["self"], given["dim"] or range(given["self"].dim())
    if not view.is_cpu or view.dtype.itemsize < torch.float32.itemsize or given.get("dtype") not in (None, view.dtype):
        return None
    count = torch.scalar_tensor(math.prod(x.shape[axis] for axis in axes), dtype=view.dtype)
    total = instruction(aten.sum.IntList_out, x, given["dim"], given.get("keepdim", False), out=view)
    return (total, instruction(aten.div.out, view, count, out=view))


def _index_put(given: Arguments, view: torch.Tensor) -> Code:
    accumulate = given.get("accumulate", False)
    change = instruction(aten.index_put_.default, view, given["indices"], given["values"], accumulate)
    return (_copied(view, given["self"]), change)


LOWERINGS: Final[Mapping[str, Lowering]] = {
    "aten.empty.memory_format": _leave,
    "aten.empty_strided.default": _leave,
    "aten.empty_like.default": _leave,
    "aten.new_empty.default": _leave,
    "aten.new_empty_strided.default": _leave,
    "aten.zeros.default": _zero,
    "aten.zeros_like.default": _zero,
    "aten.new_zeros.default": _zero,
    "aten.ones.default": _ones,
    "aten.ones_like.default": _ones,
    "aten.new_ones.default": _ones,
    "aten.full.default": _fill("fill_value"),
    "aten.full_like.default": _fill("fill_value"),
    "aten.new_full.default": _fill("fill_value"),
    "aten.scalar_tensor.default": _fill("s"),
    "aten._to_copy.default": _copy,
    "aten.clone.default": _copy,
    "aten.lift_fresh_copy.default": _copy,
    "aten.relu.default": _relu,
    "aten.add.Scalar": _scalar(aten.add.out),
    "aten.sub.Scalar": _scalar(aten.sub.out),
    "aten.mul.Scalar": _scalar(aten.mul.out),
    "aten.div.Scalar": _scalar(aten.div.out),
    "aten.embedding.default": _embedding,
    "aten.masked_fill.Scalar": _masked_fill,
    "aten.masked_fill.Tensor": _masked_fill,
    "aten.index_put.default": _index_put,
    "aten.cat.default": _cat,
    "aten.mean.dim": _mean,
    "aten.mm.default": product,
    "aten.addmm.default": product_added,
    "aten.embedding_dense_backward.default": _embedding_gradient,
    "aten.slice_backward.default": _slice_gradient,
    "aten.select_backward.default": _select_gradient,
}
SINGLE_PASS: Final = frozenset(
    {"aten._to_copy.default", "aten.clone.default", "aten.relu.default"}
    | {f"aten.{name}.Scalar" for name in ("add", "sub", "mul", "div")}
)
"""Lowerings that may write over what they read, where both are one window."""

IN_PARTS: Final[Mapping[str, InParts]] = {
    "aten.native_layer_norm.default": normalization_in_parts,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": attention_in_parts,
    "aten._safe_softmax.default": softmax_in_parts,
    "aten.convolution.default": convolution_in_parts,
    "aten.native_layer_norm_backward.default": normalization_gradient_in_parts,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": attention_gradient_in_parts,
    "aten.embedding_dense_backward.default": embedding_gradient_in_parts,
    "aten.convolution_backward.default": convolution_gradient_in_parts,
}
"""By operator: its call in parts of so many bytes, ``None`` where one is enough. Which bits come out depends on the
kernel that a size picks, so they are tried against the operator before use.
"""
