"""What a judge may take for granted about operators: one table, without torch. What has no row is run exactly once.

An operator with a row computes its results, and changes those of its arguments that the graph says it writes, from its
arguments alone: no random numbers, no state of its own, the same bits whenever it runs on the same bits. Rows are tried
against torch by ``tests/unit/judge/rewrite/test_facts.py``, some where there is a GPU alone.
"""

import struct
from collections.abc import Mapping
from typing import Final

from tmmu.ir.call_text import DEFAULT, Argument, CallText, decode_float, encode_float
from tmmu.ir.rewrite import ARGUMENT, NONE, RESULT, SCALE, Twin

_ELEMENTWISE: Final = """
abs acos acosh angle asin asinh atan atan2 atanh bitwise_and.Scalar bitwise_and.Tensor bitwise_not bitwise_or.Scalar
bitwise_or.Tensor bitwise_xor.Scalar bitwise_xor.Tensor ceil celu clamp clamp.Tensor clamp_max clamp_max.Tensor
clamp_min clamp_min.Tensor clone copysign.Scalar copysign.Tensor cos cosh deg2rad digamma div.Scalar
div.Scalar_mode div.Tensor div.Tensor_mode elu elu_backward eq.Scalar eq.Tensor erf erfc erfinv exp exp2 expm1 floor
floor_divide floor_divide.Scalar fmax fmin fmod.Scalar fmod.Tensor frac ge.Scalar ge.Tensor gelu gelu_backward
gt.Scalar gt.Tensor hardshrink hardsigmoid hardsigmoid_backward hardswish hardswish_backward hardtanh
hardtanh_backward heaviside hypot isinf isnan le.Scalar le.Tensor leaky_relu leaky_relu_backward lerp.Scalar
lerp.Tensor lgamma log log10 log1p log2 log_sigmoid_backward logaddexp logaddexp2 logical_and logical_not logical_or
logical_xor logit lt.Scalar lt.Tensor masked_fill.Scalar masked_fill.Tensor maximum minimum mish mish_backward
mul.Scalar mul.Tensor nan_to_num native_dropout_backward ne.Scalar ne.Tensor neg nextafter polygamma pow.Scalar
pow.Tensor_Scalar pow.Tensor_Tensor rad2deg reciprocal relu remainder.Scalar remainder.Scalar_Tensor remainder.Tensor
round round.decimals rsqrt rsub.Scalar rsub.Tensor sgn sigmoid sigmoid_backward sign signbit silu silu_backward sin
sinc sinh softplus softplus_backward softshrink sqrt sub.Scalar sub.Tensor tan tanh tanh_backward threshold
threshold_backward trunc where.self xlogy.Tensor add.Scalar add.Tensor addcdiv addcmul
""".split()

_OTHERS: Final = """
_adaptive_avg_pool2d _cdist_forward _fft_c2c _fft_c2r _fft_r2c _fused_rms_norm _fused_rms_norm_backward _grouped_mm
_log_softmax _log_softmax_backward_data _native_batch_norm_legit _native_batch_norm_legit.no_stats
_native_batch_norm_legit_no_training _pdist_forward _prelu_kernel _softmax _softmax_backward_data _to_copy
_weight_norm_interface addbmm addmm addmv addr all all.dim amax amin any any.dim any.dims arange arange.start
arange.start_step argmax argmin avg_pool2d avg_pool2d_backward baddbmm bmm bucketize.Tensor cat col2im complex
constant_pad_nd convolution convolution_backward count_nonzero cummax cummin diag_embed diagonal_backward dot
embedding eye eye.m fill.Scalar flip full full_like gather glu glu_backward grid_sampler_2d im2col index.Tensor
index_select isin.Tensor_Tensor linalg_vector_norm linspace log_sigmoid_forward logspace logsumexp max max.dim
max_pool2d_with_indices mean mean.dim min min.dim mm mse_loss mse_loss_backward mv native_batch_norm
native_batch_norm_backward native_group_norm native_group_norm_backward native_layer_norm native_layer_norm_backward
new_full new_ones new_zeros nll_loss_backward nll_loss_forward ones ones_like permute_copy pixel_shuffle polar prod
prod.dim_int reflection_pad1d reflection_pad2d repeat replication_pad2d roll scalar_tensor searchsorted.Tensor
select_backward select_scatter slice_backward slice_scatter smooth_l1_loss sort sort.stable split_with_sizes_copy
stack std.correction sum sum.dim_IntList topk tril tril_indices triu triu_indices unfold_backward upsample_bicubic2d
upsample_bilinear2d upsample_nearest2d var.correction var_mean.correction zeros zeros_like
""".split()

_CHANGING: Final = """
abs_ add_.Scalar add_.Tensor addcdiv_ addcmul_ bitwise_not_ clamp_ clamp_min_ copy_ cos_ div_.Scalar div_.Tensor exp_
fill_.Scalar fill_.Tensor index_copy_ index_fill_.int_Scalar lerp_.Scalar log_ logical_not_ masked_fill_.Scalar
masked_fill_.Tensor mul_.Scalar mul_.Tensor neg_ pow_.Scalar reciprocal_ relu_ rsqrt_ scatter_.src scatter_.value
sigmoid_ silu_ sqrt_ sub_.Scalar sub_.Tensor tanh_ zero_
""".split()

_LISTS: Final = """
_foreach_abs _foreach_abs_ _foreach_add.List _foreach_add.Scalar _foreach_add_.List _foreach_add_.Scalar
_foreach_add_.ScalarList _foreach_add_.Tensor _foreach_addcdiv_.Scalar _foreach_addcdiv_.ScalarList
_foreach_addcmul.Scalar _foreach_addcmul_.Scalar _foreach_addcmul_.ScalarList _foreach_clamp_max_.Scalar
_foreach_clamp_min_.Scalar _foreach_copy_ _foreach_div.List _foreach_div.Scalar _foreach_div_.List
_foreach_div_.Scalar _foreach_div_.ScalarList _foreach_lerp_.Scalar _foreach_lerp_.ScalarList _foreach_maximum_.List
_foreach_mul.List _foreach_mul.Scalar _foreach_mul.ScalarList _foreach_mul_.List _foreach_mul_.Scalar
_foreach_mul_.ScalarList _foreach_neg _foreach_neg_ _foreach_pow.Scalar _foreach_pow_.Scalar _foreach_reciprocal_
_foreach_rsqrt_ _foreach_sign_ _foreach_sqrt _foreach_sqrt_ _foreach_sub.List _foreach_sub.Scalar _foreach_sub_.List
_foreach_sub_.Scalar _foreach_zero_ _fused_adagrad_ _fused_adam_ _fused_adamw_ _fused_sgd_
""".split()

_ATOMIC: Final = """
_embedding_bag bincount cumprod cumsum embedding_dense_backward grid_sampler_2d_backward histc index_add index_add_
index_put index_put_ kthvalue max_pool2d_with_indices_backward median nll_loss2d_backward nll_loss2d_forward
_adaptive_avg_pool2d_backward scatter.src scatter.value scatter_add scatter_add_ scatter_reduce.two
upsample_bilinear2d_backward upsample_nearest2d_backward upsample_bicubic2d_backward reflection_pad2d_backward
replication_pad2d_backward
""".split()
"""Whose kernels on a GPU add in an order of their own, so that no two runs need have the same bits."""


_EMPTY: Final = "empty.memory_format empty_like empty_permuted empty_strided new_empty new_empty_strided".split()
"""Whose results hold whatever was there."""


def _full(name: str) -> str:
    return f"aten.{name}" if "." in name else f"aten.{name}.default"


ATOMIC: Final = frozenset(map(_full, _ATOMIC))
EMPTY: Final = frozenset(map(_full, _EMPTY))
LIST_OPERATORS: Final = frozenset(map(_full, _LISTS))
"""Operators on lists of tensors that do to each entry what they do to a list of it alone."""

_NO_DROPOUT: Final[tuple[Argument, ...]] = ([DEFAULT], encode_float(0.0))
CONDITIONS: Final[Mapping[str, tuple[int, tuple[Argument, ...]]]] = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": (3, _NO_DROPOUT),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": (6, _NO_DROPOUT),
    "aten._scaled_dot_product_efficient_attention.default": (5, _NO_DROPOUT),
    "aten._scaled_dot_product_flash_attention.default": (3, _NO_DROPOUT),
    "aten._scaled_dot_product_cudnn_attention.default": (5, _NO_DROPOUT),
}
"""Operators that have a row while the argument at this place is one of these: attention that drops nothing out."""

OPERATORS: Final = frozenset(map(_full, (*_ELEMENTWISE, *_OTHERS, *_CHANGING, *_LISTS, *_ATOMIC, *_EMPTY))) | set(
    CONDITIONS
)
"""Every operator with a row."""

_NORMALIZED: Final = ((ARGUMENT, 0), (ARGUMENT, 1), (ARGUMENT, 2))
_SETTINGS: Final = ((ARGUMENT, 5), (ARGUMENT, 6), (ARGUMENT, 7))
TWINS: Final[Mapping[str, Twin]] = {
    "aten.native_batch_norm.default": Twin(
        "aten.native_batch_norm.default", (*_NORMALIZED, (NONE, 3), (NONE, 4), *_SETTINGS), (0, 1, 2)
    ),
    "aten._native_batch_norm_legit.default": Twin(
        "aten._native_batch_norm_legit.no_stats", (*_NORMALIZED, *_SETTINGS), (0, 1, 2)
    ),
    "aten.native_dropout.default": Twin(
        "aten.native_dropout_backward.default", ((ARGUMENT, 0), (RESULT, 1), (SCALE, 1)), (0,)
    ),
}
"""Operators that have a twin without effects, where ``has_twin`` says so.

A batch norm in training computes its result from the batch alone; running mean and variance are only written. What
dropout makes is its input times the mask that it drew, times a scale; the mask is read, and never made again.
"""
_TRAINS: Final[Mapping[str, tuple[int, tuple[Argument, ...], int]]] = {
    "aten.native_batch_norm.default": (5, (True,), 8),
    "aten._native_batch_norm_legit.default": (5, (True,), 8),
    "aten.native_dropout.default": (2, (True, []), 3),
}
"""Place and values of the argument by which an op trains, and how many arguments it has."""


def computes_alone(text: CallText) -> bool:
    """Whether an operator does no more than compute results and declared writes from its arguments."""
    condition = CONDITIONS.get(text.operator)
    if condition is not None:
        place, allowed = condition
        return any(text.arguments[place] == value for value in allowed)
    return text.operator in OPERATORS


def has_same_bits(text: CallText, target: str) -> bool:
    """Whether another run on the same bits has the same bits, on this target."""
    return text.operator not in EMPTY and (target == "cpu" or text.operator not in ATOMIC)


def has_twin(text: CallText, target: str) -> bool:
    """Whether the call that ``TWINS`` says computes the same results, bit for bit, on this target."""
    twin = TWINS.get(text.operator)
    if twin is None:
        return False
    place, allowed, arguments = _TRAINS[text.operator]
    if len(text.arguments) != arguments or text.arguments[place] not in allowed:
        return False
    results = [*twin.results, *(place for what, place in twin.arguments if what == RESULT)]
    scales = [text.arguments[place] for what, place in twin.arguments if what == SCALE]
    are_tensors = text.results[: max(results) + 1] == (True,) * (max(results) + 1)
    return are_tensors and all(twin_scale(scale, target) is not None for scale in scales)


def twin_scale(probability: Argument, target: str) -> float | None:
    """``1 / (1 - p)``, by which dropout multiplies what it keeps; ``None`` where a twin multiplies by another.

    A GPU's dropout rounds ``1 - p`` to single precision before it divides, its twin is given the quotient: they are one
    in single precision for 0.1, 0.2, 0.25, 0.3 and 0.5, not for 0.15. A CPU's rounds the quotient to the type of its
    input, its twin to single precision: they are one in each type for 0.2, 0.5 and 0.75, not for 0.1. Where all is
    dropped, a GPU's writes zeros, and its twin would multiply infinities and numbers below zero: none for 1.
    """
    p = decode_float(probability) if isinstance(probability, bytes) else 1.0
    if not 0 <= p < 1:
        return None
    scale = 1 / (1 - p)
    rounded = _bfloat16(scale) if target == "cpu" else _single(1 / _single(1 - p))
    return scale if scale <= _HALF_MAX and _single(scale) == rounded else None


_HALF_MAX: Final = 65_504.0


def _single(number: float) -> float:
    return float(struct.unpack(">f", struct.pack(">f", number))[0])


def _bfloat16(number: float) -> float:
    """The leading 16 bits of single precision."""
    return float(struct.unpack(">f", struct.pack(">f", number)[:2] + bytes(2))[0])
