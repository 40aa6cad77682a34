"""Floating-point operations of an op, from the shapes that it reads and writes.

Products, convolutions and attention count what torch's formulas count (``torch.utils.flop_counter``): two per
multiply-add, causal masks and padding left out of account. Elementwise ops count the elements that they write, each
as ``WEIGHTS`` says; reductions, norms and poolings the elements that they read; what moves data counts nothing.
"""

from collections.abc import Sequence
from math import prod
from typing import Final

from tmmu.ir.graph import CONSTANT, PARAMETER, STATE, Graph
from tmmu.passes.semantics import families
from tmmu.passes.semantics.families import base_name, family_of

Shape = Sequence[int]

_ROOTS: Final = "div div_ sqrt rsqrt reciprocal fmod remainder floor_divide hypot addcdiv hardsigmoid hardswish"
_EXPONENTIALS: Final = """exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh
    acosh atanh sigmoid silu gelu elu celu mish softplus erf erfc erfinv pow logaddexp logaddexp2 lgamma digamma
    polygamma logit log_sigmoid_forward xlogy sinc"""
WEIGHTS: Final = (
    dict.fromkeys(_ROOTS.split(), 4)
    | dict.fromkeys(_EXPONENTIALS.split(), 8)
    | {"addcmul": 2, "lerp": 3, "_fused_adamw_": 12, "_fused_adam_": 12, "_fused_sgd_": 4}
)
"""FLOPs per element: 1 where none is written; 4 for a division or root, 8 for an exponential and what is made of one.

A gradient (``gelu_backward``) weighs what its function does, and an operator over lists what its operator does.
"""
SOFTMAX_WEIGHT: Final = 5
"""Per element: the largest, a difference, an exponential taken as one, a sum, a division."""
NORM_WEIGHT: Final = 8
"""Per element: mean and variance, difference, scale, weight and bias."""


def op_flops(graph: Graph, op: int) -> int:
    """FLOPs of an op: the note, where torch's own formula left one, else the formula of its family."""
    return graph.notes.ops.flops[op] or shape_flops(graph, op)


def shape_flops(graph: Graph, op: int) -> int:
    """FLOPs of an op by its shapes alone; 0 where they are not those of the operator that it is named after."""
    if not graph.ops.writes[op]:
        return 0
    try:
        return _family_flops(graph, op)
    except (IndexError, ValueError):
        return 0


def _family_flops(graph: Graph, op: int) -> int:
    family, name = family_of(graph.ops.target[op]), base_name(graph.ops.target[op])
    reads = [graph.values.shape[value] for value in graph.ops.reads[op]]
    writes = [graph.values.shape[value] for value in graph.ops.writes[op]]
    if family == families.PRODUCT:
        return _product_flops(name, reads, writes[0])
    if family == families.ATTENTION:
        return _attention_flops(name, reads)
    if family == families.CONVOLUTION and len(reads) > 1:
        return _convolution_flops(name, reads, writes)
    if family == families.RECURRENCE:
        return _recurrence_flops(graph, op)
    return _elementwise_flops(family, name, reads, writes, _largest_written(graph, op))


def _product_flops(name: str, reads: Sequence[Shape], result: Shape) -> int:
    """Equal factors are read once: the last shape stands for both."""
    if not reads:
        return 0
    left, right = reads[-2:] if len(reads) > 1 else (reads[0], reads[0])
    if name in {"_addmm_activation", "_int_mm", "addmm", "baddbmm", "mm", "bmm"}:
        return 2 * prod(result) * right[-2]
    if name in {"_scaled_mm", "_scaled_grouped_mm", "_grouped_mm", "linear", "mkldnn_linear"}:
        return 2 * prod(result) * reads[0][-1]
    if name == "addbmm":
        return 2 * prod(result) * left[0] * left[-1]
    if name in {"mv", "addmv"}:
        return 2 * prod(left)
    return 2 * prod(left) if name in {"dot", "vdot"} else 2 * prod(result)


def _attention_flops(name: str, reads: Sequence[Shape]) -> int:
    """Scores and their product with the values; a gradient computes the scores again and four products more."""
    is_backward = name.endswith("backward")
    operands = list(reads[1:4] if is_backward else reads[:3])
    if not operands or min(map(len, operands)) < 3:
        return 0
    query = operands[0]
    key = operands[1] if len(operands) > 1 and operands[1][-1] == query[-1] else query
    value = operands[2] if len(operands) > 2 and operands[2][-2] == key[-2] else key
    pairs = 2 * prod(query[:-1]) * key[-2]
    return pairs * (3 * query[-1] + 2 * value[-1]) if is_backward else pairs * (query[-1] + value[-1])


def _convolution_flops(name: str, reads: Sequence[Shape], writes: Sequence[Shape]) -> int:
    if name != "convolution_backward":
        places = reads[0][2:] if _is_transposed(reads[0], reads[1], writes[0]) else writes[0][2:]
        return 2 * prod(reads[1]) * reads[0][0] * prod(places)
    gradient, operand, weight = reads[:3] if len(reads) > 2 else (reads[0], reads[-1], reads[-1])
    is_transposed = _is_transposed(operand, weight, gradient)
    count = prod(operand[2:] if is_transposed else gradient[2:])
    total = 2 * prod(weight) * operand[0] * count if operand in writes else 0
    # As torch counts it: every pair of channels, groups left out of account.
    of_weight = 2 * prod(weight[2:]) * count * operand[0] * operand[1] * gradient[1]
    return total + (of_weight if weight in writes else 0)


def _is_transposed(operand: Shape, weight: Shape, result: Shape) -> bool:
    """Channels tell; where they fit both ways, a kernel's places more along an axis than padding would add."""
    plain = weight[0] == result[1] and weight[1] > 0 and operand[1] % weight[1] == 0
    transposed = weight[0] == operand[1] and weight[1] > 0 and result[1] % weight[1] == 0
    if plain and transposed:
        axes = zip(operand[2:], weight[2:], result[2:], strict=True)
        return any(after >= before + kernel for before, kernel, after in axes)
    return transposed


def _recurrence_flops(graph: Graph, op: int) -> int:
    """Two per weight and row of the input; a gradient does it twice."""
    values, reads = graph.values, graph.ops.reads[op]
    kinds = (PARAMETER, CONSTANT, STATE)
    weights = [v for v in reads if graph.buffers.role[values.buffer[v]] in kinds and len(values.shape[v]) > 1]
    operand = next((values.shape[v] for v in reads if v not in weights and len(values.shape[v]) > 1), ())
    rows = prod(operand[:-1]) if operand else 0
    passes = 2 if base_name(graph.ops.target[op]).endswith("backward") else 1
    return 2 * passes * rows * sum(prod(values.shape[v]) for v in weights)


def _elementwise_flops(family: str, name: str, reads: Sequence[Shape], writes: Sequence[Shape], written: int) -> int:
    if family in {families.ELEMENTWISE, families.RESIZING} or name.startswith(
        ("_foreach_", "_fused_adam", "_fused_sgd")
    ):
        return written * _weight(name)
    most = max((prod(shape) for shape in reads), default=0)
    if family == families.SOFTMAX or name.startswith("_log_softmax"):
        return SOFTMAX_WEIGHT * prod(writes[0])
    if family == families.NORMALIZATION:
        return NORM_WEIGHT * most
    if family in {families.REDUCTION, families.POOLING}:
        return most
    return written if name in {"index_add", "index_add_", "scatter_add", "scatter_add_", "_embedding_bag"} else 0


def _weight(name: str) -> int:
    plain = name.removeprefix("_foreach_").removesuffix("_").removesuffix("_backward")
    return WEIGHTS.get(name, WEIGHTS.get(plain, 1))


def _largest_written(graph: Graph, op: int) -> int:
    """Elements written, each buffer once: of several windows of one buffer the largest."""
    largest: dict[int, int] = {}
    for value in graph.ops.writes[op]:
        buffer, count = graph.values.buffer[value], prod(graph.values.shape[value])
        largest[buffer] = max(largest.get(buffer, 0), count)
    return sum(largest.values())
