"""What is known about an operator: one row each. A missing row gets the default, which claims nothing.

``elementwise``: each element of each result depends on the elements at the same place in the arguments of the same
shape, so a result may be computed in the bytes of such an argument. ``random``: draws random numbers, as
torch's tag ``nondeterministic_seeded`` says, so it is never computed twice and never dropped.
"""

from dataclasses import dataclass
from typing import Final

from tmmu.errors import InternalError
from tmmu.ir.random_state import RANDOM_STATE_OPS


@dataclass(frozen=True, slots=True, kw_only=True)
class OpFacts:
    """One operator's row. The default claims nothing: no overwriting, never recomputed, fresh outputs."""

    elementwise: bool = False
    random: bool = False
    has_row: bool = True


UNKNOWN: Final = OpFacts(has_row=False)

_ELEMENTWISE: Final = """
abs acos acosh angle asin asinh atan atan2 atanh bitwise_and.Scalar bitwise_and.Tensor bitwise_not bitwise_or.Scalar
bitwise_or.Tensor bitwise_xor.Scalar bitwise_xor.Tensor ceil celu clamp clamp.Tensor clamp_max clamp_max.Tensor
clamp_min clamp_min.Tensor clone conj_physical copysign.Scalar copysign.Tensor cos cosh deg2rad digamma div.Scalar
div.Scalar_mode div.Tensor div.Tensor_mode elu elu_backward eq.Scalar eq.Tensor erf erfc erfinv exp exp2 expm1 floor
floor_divide floor_divide.Scalar fmax fmin fmod.Scalar fmod.Tensor frac ge.Scalar ge.Tensor gelu gelu_backward
gt.Scalar gt.Tensor hardshrink hardsigmoid hardsigmoid_backward hardswish hardswish_backward hardtanh
hardtanh_backward heaviside hypot isinf isnan le.Scalar le.Tensor leaky_relu leaky_relu_backward lerp.Scalar
lerp.Tensor lgamma log log10 log1p log2 log_sigmoid_backward logaddexp logaddexp2 logical_and logical_not logical_or
logical_xor logit lt.Scalar lt.Tensor masked_fill.Scalar masked_fill.Tensor maximum minimum mish mish_backward
mul.Scalar mul.Tensor nan_to_num native_dropout_backward ne.Scalar ne.Tensor neg nextafter polygamma positive
pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor rad2deg reciprocal relu relu6 remainder.Scalar remainder.Scalar_Tensor
remainder.Tensor round round.decimals rsqrt rsub.Scalar rsub.Tensor sgn sigmoid sigmoid_backward sign signbit silu
silu_backward sin sinc sinh softplus softplus_backward softshrink sqrt square sub.Scalar sub.Tensor tan tanh
tanh_backward threshold threshold_backward trunc where.ScalarOther where.ScalarSelf where.self xlogy.Tensor add.Scalar
add.Tensor addcdiv addcmul
""".split()

_RANDOM_ELEMENTWISE: Final = "bernoulli.p native_dropout".split()

_RANDOM: Final = """
_efficient_attention_forward _fused_dropout _scaled_dot_product_cudnn_attention
_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward
_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu bernoulli bernoulli_.float exponential_
multinomial normal_ rand rand_like randint randint.low randn randn_like randperm uniform_
""".split()

_KNOWN: Final = """
_adaptive_avg_pool2d _adaptive_avg_pool2d_backward _cdist_forward _chunk_cat _conj _embedding_bag _fft_c2c _fft_c2r
_fft_r2c _foreach_add_.Scalar _fused_adamw_ _fused_rms_norm _fused_rms_norm_backward _fused_sgd_ _grouped_mm
_local_scalar_dense _log_softmax _log_softmax_backward_data _native_batch_norm_legit _native_batch_norm_legit.no_stats
_pdist_forward _prelu_kernel _scaled_dot_product_flash_attention_backward
_scaled_dot_product_flash_attention_for_cpu_backward _softmax _softmax_backward_data _to_copy _unique2
_upsample_bilinear2d_aa _weight_norm_interface abs_ add_.Scalar add_.Tensor addbmm addcdiv_ addcmul_ addmm addmv addr
all all.dim amax amin any any.dim any.dims arange arange.start arange.start_step argmax argmin argsort as_strided_
avg_pool1d avg_pool2d avg_pool2d_backward baddbmm bincount bitwise_not_ bmm bucketize.Tensor cat clamp_ clamp_min_
col2im complex constant_pad_nd convolution convolution_backward copy_ cos_ count_nonzero cross cummax cumprod cumsum
diag_embed diagonal_backward div_.Scalar div_.Tensor dot embedding embedding_dense_backward empty.memory_format
empty_like empty_permuted empty_strided exp_ eye eye.m fill.Scalar fill_.Scalar fill_.Tensor flip full full_like
gather glu glu_backward grid_sampler_2d grid_sampler_2d_backward group_norm histc im2col index.Tensor index_add
index_add_ index_copy index_copy_ index_fill_.int_Scalar index_put index_put_ index_select isin.Tensor_Tensor kthvalue
linalg_inv_ex linalg_vector_norm linspace log_ log_sigmoid_forward logical_not_ logspace logsumexp masked_fill_.Scalar
masked_fill_.Tensor masked_scatter masked_select max max.dim max_pool2d_with_indices max_pool2d_with_indices_backward
mean mean.dim median min min.dim mm mse_loss mse_loss_backward mul_.Scalar mul_.Tensor mv native_batch_norm
native_batch_norm_backward native_group_norm native_group_norm_backward native_layer_norm native_layer_norm_backward
neg_ new_empty new_empty_strided new_full new_ones new_zeros nll_loss2d_backward nll_loss2d_forward nll_loss_backward
nll_loss_forward nonzero ones ones_like permute_copy pixel_shuffle pow_.Scalar prod prod.dim_int reciprocal_
reflection_pad1d reflection_pad2d relu_ repeat repeat_interleave.Tensor replication_pad2d roll rsqrt_ scalar_tensor
scatter.src scatter.value scatter_.src scatter_.value scatter_add scatter_add_ scatter_reduce.two searchsorted.Tensor
select_backward select_scatter sigmoid_ silu_ slice_backward slice_scatter smooth_l1_loss sort sort.stable
sort.values_stable split_with_sizes_copy stack std.correction sub_.Tensor sum sum.dim_IntList tanh_ topk tril
tril_indices triu triu_indices unfold_backward upsample_bicubic2d.vec upsample_bicubic2d upsample_bilinear2d.vec
upsample_bilinear2d upsample_bilinear2d_backward upsample_nearest2d.vec upsample_nearest2d upsample_nearest2d_backward
var.correction var_mean.correction zero_ zeros zeros_like
""".split()


def _table() -> dict[str, OpFacts]:
    rows: dict[str, OpFacts] = {}
    kinds = ((_ELEMENTWISE, OpFacts(elementwise=True)), (_RANDOM_ELEMENTWISE, OpFacts(elementwise=True, random=True)))
    for names, facts in (*kinds, (_RANDOM, OpFacts(random=True)), (_KNOWN, OpFacts())):
        for name in names:
            full = f"aten.{name}" if "." in name else f"aten.{name}.default"
            if full in rows:
                raise InternalError(f"operator {full} has two rows")
            rows[full] = facts
    return rows | dict.fromkeys(RANDOM_STATE_OPS, OpFacts(random=True))


TABLE: Final = _table()


def facts_of(target: str) -> OpFacts:
    """The row of an operator such as ``aten.add.Tensor``; ``UNKNOWN`` where there is none."""
    return TABLE.get(target, UNKNOWN)
