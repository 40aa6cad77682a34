"""The operators that a recorded graph may call: torch's own, by name, which compute values from values and no more.

Not in the table, and refused by both ends: what reads files or runs code, what depends on addresses; what leaves memory
that nobody has written in a result (``empty``, ``_embedding_bag``, ``_grouped_mm``); what takes a generator or a tensor
that is not dense; what may not end for some values (``_standard_gamma``) or allocates by one (``bincount``,
``mvlgamma``); gradients that trust indices, as those of pooling by maximum. Views are no calls of a graph: they are
windows.
"""

from typing import Final

_ELEMENTWISE: Final = """
abs acos acosh add addcdiv addcmul angle asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not
bitwise_or bitwise_right_shift bitwise_xor ceil celu clamp clamp_max clamp_min clone complex conj_physical copysign
cos cosh deg2rad digamma div elu eq erf erfc erfinv exp exp2 expm1 fill floor floor_divide fmax fmin fmod frac frexp
gcd ge gelu gt hardshrink hardsigmoid hardswish hardtanh heaviside hypot i0 igamma igammac isinf isnan isneginf
isposinf lcm ldexp le leaky_relu lerp lgamma log log10 log1p log2 log_sigmoid_forward logaddexp logaddexp2 logical_and
logical_not logical_or logical_xor logit lt masked_fill maximum minimum mish mul nan_to_num ne neg nextafter polar
polygamma pow rad2deg reciprocal relu remainder round rsqrt rsub sgn sigmoid sign signbit silu sin sinc sinh softplus
softshrink special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 special_entr
special_erfcx special_i0e special_i1 special_i1e special_log_ndtr special_ndtri special_xlog1py special_zeta sqrt sub
tan tanh threshold trunc where xlogy zero _to_copy _prelu_kernel positive square
""".split()

_REDUCTIONS: Final = """
all amax amin aminmax _aminmax any argmax argmin count_nonzero cummax cummin cumprod cumsum dist histc kthvalue
linalg_vector_norm logcumsumexp logsumexp max mean median min mode nanmedian nansum norm prod std std_mean sum trace
var var_mean _is_all_true _is_any_true
""".split()

_PRODUCTS: Final = """
addbmm addmm addmv addr baddbmm bmm convolution dot mm mv vdot _trilinear _int_mm _cdist_forward _euclidean_dist
_pdist_forward _fft_c2c _fft_r2c linalg_cholesky_ex linalg_cross linalg_eig linalg_eigvals linalg_eigvalsh
linalg_svdvals linalg_householder_product linalg_inv_ex linalg_lu linalg_lu_factor_ex linalg_matrix_exp linalg_pinv
linalg_qr linalg_solve_triangular _linalg_det _linalg_eigh _linalg_eigvals _linalg_slogdet _linalg_solve_ex
_linalg_svd
""".split()

_LAYERS: Final = """
_adaptive_avg_pool2d _adaptive_avg_pool3d _log_softmax _native_batch_norm_legit _native_batch_norm_legit_no_training
_safe_softmax _softmax _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d
_upsample_nearest_exact2d _upsample_nearest_exact3d adaptive_max_pool2d adaptive_max_pool3d affine_grid_generator
avg_pool1d avg_pool2d avg_pool3d binary_cross_entropy binary_cross_entropy_with_logits channel_shuffle col2im
constant_pad_nd dropout embedding glu grid_sampler_2d grid_sampler_3d gru.input huber_loss im2col log_softmax.int
lstm.input max_pool2d_with_indices max_pool3d_with_indices mse_loss native_batch_norm native_channel_shuffle
native_group_norm native_layer_norm nll_loss2d_forward nll_loss_forward pixel_shuffle pixel_unshuffle reflection_pad1d
reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d rnn_relu.input rnn_tanh.input
scaled_dot_product_attention smooth_l1_loss soft_margin_loss softmax.int upsample_bicubic2d upsample_bilinear2d
upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_trilinear3d
""".split()

_MOVERS: Final = """
_chunk_cat as_strided_scatter block_diag bucketize cat copy diag_embed diagonal_scatter flip gather index index_add
index_copy index_fill index_put index_reduce index_select isin masked_scatter put renorm repeat roll rot90 scatter
scatter_add scatter_reduce searchsorted select_scatter slice_scatter sort stack take topk tril triu
""".split()

_FACTORIES: Final = """
arange bartlett_window blackman_window eye fft_fftfreq fft_rfftfreq full full_like hamming_window hann_window
kaiser_window linspace logspace new_full new_ones new_zeros ones ones_like range scalar_tensor tril_indices
triu_indices zeros zeros_like
""".split()

_GRADIENTS: Final = """
_adaptive_avg_pool2d_backward _log_softmax_backward_data _scaled_dot_product_flash_attention_for_cpu
_scaled_dot_product_flash_attention_for_cpu_backward _softmax_backward_data avg_pool2d_backward convolution_backward
elu_backward embedding_dense_backward gelu_backward hardsigmoid_backward hardswish_backward hardtanh_backward
huber_loss_backward leaky_relu_backward mish_backward mse_loss_backward native_batch_norm_backward
native_layer_norm_backward nll_loss_backward select_backward sigmoid_backward silu_backward slice_backward
smooth_l1_loss_backward softplus_backward tanh_backward threshold_backward
""".split()

RANDOM_OPERATORS: Final = frozenset(
    """
bernoulli cauchy dropout exponential geometric gru.input log_normal lstm.input multinomial normal rand rand_like
randint randint_like randn randn_like random randperm rnn_relu.input rnn_tanh.input scaled_dot_product_attention
uniform
""".split()
)
"""Operators that draw, or may: never computed once for two calls. Names as of ``packet_name``."""

SIZED_OPERATORS: Final = frozenset(
    """
_unique2 index masked_select nonzero unique_consecutive unique_dim unique_dim_consecutive
""".split()
)
"""Operators whose values may decide the shapes of their results, never with more elements than they read by axis."""

GRAPH_OPERATORS: Final = frozenset(
    (
        *_ELEMENTWISE,
        *_REDUCTIONS,
        *_PRODUCTS,
        *_LAYERS,
        *_MOVERS,
        *_FACTORIES,
        *_GRADIENTS,
        *RANDOM_OPERATORS,
        *SIZED_OPERATORS,
    )
)
GRAPH_DTYPES: Final = frozenset(
    """
bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex64 complex128
float8_e4m3fn float8_e5m2
""".split()
)
"""Dtypes of windows."""


def packet_name(operator: str) -> str:
    """``aten.add_.Tensor`` as ``add``: how the tables name all overloads, in place or not."""
    name = operator.removeprefix("aten.").partition(".")[0]
    return name.rstrip("_") or name


def is_in(operator: str, table: frozenset[str]) -> bool:
    """Whether a table has an operator such as ``aten.add.Tensor``: all its overloads, or this one."""
    name, _, overload = operator.removeprefix("aten.").partition(".")
    packet = packet_name(operator)
    return operator.startswith("aten.") and (packet in table or f"{name}.{overload}" in table)
