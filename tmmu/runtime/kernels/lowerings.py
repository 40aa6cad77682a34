"""Operators without a native ``out=`` overload, lowered to operators that write into the planned result.

Two tables, one row per operator. A row of ``LOWERINGS`` maps the arguments of a call, by name, and its result to code,
or to ``None`` where it does not apply; ``IN_PARTS`` also takes the bytes that a part may allocate. No state.

A row may be wrong without harm: ``steps/validate.py`` runs its code beside the operator on several draws before it is
used, and any bit that differs drops it. Rows in ``SINGLE_PASS`` alone may be given a result that is also an argument.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import torch

from tmmu.runtime.kernels.code import Arguments, Code, Instruction, instruction
from tmmu.runtime.kernels.convolutions import convolution_in_parts
from tmmu.runtime.kernels.gradients import (
    attention_gradient_in_parts,
    convolution_gradient_in_parts,
    embedding_gradient_in_parts,
    normalization_gradient_in_parts,
)
from tmmu.runtime.kernels.parts import MAX_PARTS, attention_in_parts, normalization_in_parts, softmax_in_parts
from tmmu.runtime.kernels.products import row_product, row_product_added

Lowering: TypeAlias = Callable[[Arguments, torch.Tensor], Code | None]
PartsLowering: TypeAlias = Callable[[Arguments, Sequence[torch.Tensor | None], int], Code | None]

aten = torch.ops.aten
MAX_CAT_COPIES: Final = 8
"""Tensors of a concatenation up to which one copy each costs less than the operator's own set-up."""


def _no_op(args: Arguments, result: torch.Tensor) -> Code:  # noqa: ARG001
    return ()


def _zero(args: Arguments, result: torch.Tensor) -> Code:  # noqa: ARG001
    return (instruction(aten.zero_.default, result),)


def _ones(args: Arguments, result: torch.Tensor) -> Code:  # noqa: ARG001
    return (instruction(aten.fill_.Scalar, result, 1),)


def _fill(name: str) -> Lowering:
    return lambda args, result: (instruction(aten.fill_.Scalar, result, args[name]),)


def _copy(args: Arguments, result: torch.Tensor) -> Code:
    return (_copy_into(result, args["self"]),)


def _copy_into(target: torch.Tensor, source: torch.Tensor) -> Instruction:
    return instruction(aten.copy_.default, target, source)


def _relu(args: Arguments, result: torch.Tensor) -> Code:
    return (instruction(aten.clamp_min.out, args["self"], 0, out=result),)


def _scalar(operator: Any) -> Lowering:
    """``op.Scalar`` by ``op.out``, which is how torch implements it."""

    def lower(args: Arguments, result: torch.Tensor) -> Code:
        options = {name: value for name, value in args.items() if name not in ("self", "other")}
        return (instruction(operator, args["self"], args["other"], **options, out=result),)

    return lower


def _embedding_rows(args: Arguments, result: torch.Tensor) -> Code | None:
    """``index_select`` of flat indices, as the operator does it; one call per row of indices with gaps between rows."""
    weight, indices = args["weight"], args["indices"]
    if not (result.is_contiguous() and weight.dim() == 2 and indices.dim() and indices.numel()):
        return None
    if indices.is_contiguous():
        runs = [(indices.view(-1), result.view(indices.numel(), weight.shape[1]))]
    elif indices.dim() == 2 and len(indices) <= MAX_PARTS and indices.stride(1) == 1:
        runs = list(zip(indices, result, strict=True))
    else:
        return None
    return tuple(instruction(aten.index_select.out, weight, 0, run, out=rows) for run, rows in runs)


def _embedding_gradient(args: Arguments, result: torch.Tensor) -> Code | None:
    """``index_add_`` in the order in which the operator adds; the row of the padding index stays zero.

    Not for short floats, which the operator sums in float32.
    """
    gradient, indices, padding = args["grad_output"], args["indices"], args["padding_idx"]
    is_dense = indices.is_contiguous() and gradient.is_contiguous() and gradient.shape[-1] > 0
    if args["scale_grad_by_freq"] or gradient.dtype.itemsize < 4 or not is_dense:
        return None
    rows = gradient.view(indices.numel(), gradient.shape[-1])
    code = (
        instruction(aten.zero_.default, result),
        instruction(aten.index_add_.default, result, 0, indices.view(-1), rows),
    )
    return code if padding < 0 else (*code, instruction(aten.zero_.default, result[padding]))


def _slice_gradient(args: Arguments, result: torch.Tensor) -> Code:
    """The gradient in the slice, zeros outside it."""
    place = aten.slice.Tensor(result, *(args[name] for name in ("dim", "start", "end", "step")))
    return (instruction(aten.zero_.default, result), _copy_into(place, args["grad_output"]))


def _select_gradient(args: Arguments, result: torch.Tensor) -> Code:
    place = result.select(args["dim"], args["index"])
    return (instruction(aten.zero_.default, result), _copy_into(place, args["grad_output"]))


def _masked_fill(args: Arguments, result: torch.Tensor) -> Code:
    value = args["value"]
    change = aten.masked_fill_.Tensor if isinstance(value, torch.Tensor) else aten.masked_fill_.Scalar
    return (_copy_into(result, args["self"]), instruction(change, result, args["mask"], value))


def _cat(args: Arguments, result: torch.Tensor) -> Code | None:
    """One copy per tensor, where some are not contiguous: the operator makes the same copies after more set-up."""
    tensors, axis = args["tensors"], args.get("dim", 0)
    few = result.is_cpu and len(tensors) <= MAX_CAT_COPIES and not all(tensor.is_contiguous() for tensor in tensors)
    if not few or any(tensor.dtype != result.dtype or tensor.dim() != result.dim() for tensor in tensors):
        return None
    parts = result.split_with_sizes([tensor.shape[axis] for tensor in tensors], axis)
    return tuple(_copy_into(part, tensor) for part, tensor in zip(parts, tensors, strict=True))


def _mean(args: Arguments, result: torch.Tensor) -> Code | None:
    """The sum, divided in place by a count made once; the operator makes a tensor of the count on every call."""
    x, axes = args["self"], args["dim"] or range(args["self"].dim())
    is_short = result.dtype.itemsize < torch.float32.itemsize  # the operator sums short floats in float32
    if not result.is_cpu or is_short or args.get("dtype") not in (None, result.dtype):
        return None
    count = torch.scalar_tensor(math.prod(x.shape[axis] for axis in axes), dtype=result.dtype)
    total = instruction(aten.sum.IntList_out, x, args["dim"], args.get("keepdim", False), out=result)
    return (total, instruction(aten.div.out, result, count, out=result))


def _index_put(args: Arguments, result: torch.Tensor) -> Code:
    accumulate = args.get("accumulate", False)
    change = instruction(aten.index_put_.default, result, args["indices"], args["values"], accumulate)
    return (_copy_into(result, args["self"]), change)


LOWERINGS: Final[Mapping[str, Lowering]] = {
    "aten.empty.memory_format": _no_op,
    "aten.empty_strided.default": _no_op,
    "aten.empty_like.default": _no_op,
    "aten.new_empty.default": _no_op,
    "aten.new_empty_strided.default": _no_op,
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
    "aten.embedding.default": _embedding_rows,
    "aten.masked_fill.Scalar": _masked_fill,
    "aten.masked_fill.Tensor": _masked_fill,
    "aten.index_put.default": _index_put,
    "aten.cat.default": _cat,
    "aten.mean.dim": _mean,
    "aten.mm.default": row_product,
    "aten.addmm.default": row_product_added,
    "aten.embedding_dense_backward.default": _embedding_gradient,
    "aten.slice_backward.default": _slice_gradient,
    "aten.select_backward.default": _select_gradient,
}
SINGLE_PASS: Final = frozenset(
    {"aten._to_copy.default", "aten.clone.default", "aten.relu.default"}
    | {f"aten.{name}.Scalar" for name in ("add", "sub", "mul", "div")}
)
"""Lowerings that read each element before they write it, so that the result may be exactly their argument."""

IN_PARTS: Final[Mapping[str, PartsLowering]] = {
    "aten.native_layer_norm.default": normalization_in_parts,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": attention_in_parts,
    "aten._safe_softmax.default": softmax_in_parts,
    "aten.convolution.default": convolution_in_parts,
    "aten.native_layer_norm_backward.default": normalization_gradient_in_parts,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": attention_gradient_in_parts,
    "aten.embedding_dense_backward.default": embedding_gradient_in_parts,
    "aten.convolution_backward.default": convolution_gradient_in_parts,
}
"""By operator: code that allocates about so many bytes at a time; ``None`` where one call is enough."""


def is_empty_maker(operator: str) -> bool:
    """Whether it makes memory whose contents are not defined, so that there is nothing to run."""
    return LOWERINGS.get(operator) is _no_op


def is_lowered(operator: Any) -> bool:
    """Whether the operator has a row in one of the tables."""
    return str(operator) in LOWERINGS or str(operator) in IN_PARTS
