"""Families of operators by name: what kind of work an op does, whatever library wrote the model.

An operator is known by its base name, ``_softmax`` of ``aten._softmax.default``; one that no family names is
``other``. Results computed in place (``add_``) belong to the family of the operator itself.
"""

from functools import cache
from typing import Final

from tmmu.passes.operators.table import TABLE

ATTENTION: Final = "attention"
CONVOLUTION: Final = "convolution"
ELEMENTWISE: Final = "elementwise"
EMBEDDING: Final = "embedding"
INDEX: Final = "index"
MOVEMENT: Final = "movement"
NORMALIZATION: Final = "normalization"
POOLING: Final = "pooling"
PRODUCT: Final = "product"
RECURRENCE: Final = "recurrence"
REDUCTION: Final = "reduction"
RESIZING: Final = "resizing"
SOFTMAX: Final = "softmax"
CREATION: Final = "creation"
OTHER: Final = "other"

_NAMES: Final = {
    ATTENTION: """_flash_attention_forward _flash_attention_backward _efficient_attention_forward
        _efficient_attention_backward flex_attention flex_attention_backward""",
    CONVOLUTION: """convolution convolution_backward _convolution cudnn_convolution convolution_overrideable
        _slow_conv2d_forward mkldnn_convolution _convolution_pointwise slow_conv3d_forward""",
    EMBEDDING: """embedding _embedding_bag embedding_dense_backward _embedding_bag_dense_backward""",
    INDEX: """index index_select gather take take_along_dim index_put index_put_ index_copy index_copy_ index_add
        index_add_ scatter scatter_ scatter_add scatter_add_ scatter_reduce masked_select masked_scatter masked_scatter_
        select_scatter slice_scatter""",
    MOVEMENT: """clone copy copy_ _to_copy cat stack constant_pad_nd repeat roll flip pixel_unshuffle
        native_dropout dropout slice_backward select_backward fill_ zero_ im2col col2im permute_copy
        _weight_norm_interface polar reflection_pad1d reflection_pad2d replication_pad2d expand_copy view_copy
        _reshape_copy split_with_sizes_copy _unsafe_view contiguous bernoulli_ repeat_interleave _chunk_cat tril triu
        detach alias""",
    NORMALIZATION: """native_layer_norm native_layer_norm_backward native_batch_norm native_batch_norm_backward
        _native_batch_norm_legit _native_batch_norm_legit_no_training cudnn_batch_norm native_group_norm
        native_group_norm_backward group_norm _fused_rms_norm _fused_rms_norm_backward _batch_norm_with_update""",
    POOLING: """max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool1d avg_pool2d avg_pool2d_backward
        _adaptive_avg_pool2d _adaptive_avg_pool2d_backward max_pool3d_with_indices avg_pool3d adaptive_max_pool2d
        _adaptive_avg_pool3d""",
    PRODUCT: "mm bmm addmm baddbmm addbmm addmv addr mv dot vdot outer _scaled_mm _grouped_mm _scaled_grouped_mm linear"
    " _addmm_activation _int_mm mkldnn_linear",
    RECURRENCE: """mkldnn_rnn_layer mkldnn_rnn_layer_backward _cudnn_rnn _cudnn_rnn_backward lstm gru
        _thnn_fused_lstm_cell _thnn_fused_gru_cell miopen_rnn""",
    REDUCTION: """sum mean amax amin max min prod var var_mean std logsumexp argmax argmin any all norm
        linalg_vector_norm cumsum cumprod cummax nll_loss_forward nll_loss_backward nll_loss2d_forward mse_loss
        count_nonzero histc bincount median sort topk argsort _log_softmax _log_softmax_backward_data
        nll_loss2d_backward""",
    RESIZING: """upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_bilinear2d upsample_bicubic2d
        upsample_linear1d upsample_trilinear3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa _upsample_nearest_exact2d
        pixel_shuffle""",
    SOFTMAX: "_softmax softmax _safe_softmax _softmax_backward_data",
    CREATION: """arange full full_like zeros zeros_like ones ones_like empty empty_like empty_strided new_zeros new_ones
        new_full new_empty new_empty_strided eye linspace logspace scalar_tensor rand randn randint randperm rand_like
        randn_like tril_indices triu_indices empty_permuted""",
}
_FAMILY: Final = {name: family for family, names in _NAMES.items() for name in names.split()}
_ELEMENTWISE_NAMES: Final = frozenset(name.split(".")[1] for name, facts in TABLE.items() if facts.elementwise)


@cache
def base_name(target: str) -> str:
    """``_softmax`` of ``aten._softmax.default``; the whole text where it names no library."""
    parts = target.split(".")
    return parts[1] if len(parts) > 1 else target


@cache
def family_of(target: str) -> str:
    """The family of an operator."""
    name = base_name(target)
    if "scaled_dot_product" in name:
        return ATTENTION
    for spelling in (name, name.removesuffix("_")):
        if spelling in _FAMILY:
            return _FAMILY[spelling]
        if spelling in _ELEMENTWISE_NAMES:
            return ELEMENTWISE
    return OTHER


@cache
def passes_through(target: str) -> bool:
    """Whether each result is about one argument: the same elements, moved, scaled, masked or normalized."""
    return family_of(target) in {ELEMENTWISE, MOVEMENT, NORMALIZATION, INDEX}
