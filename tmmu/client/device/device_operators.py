"""What is said of single operators on remote tensors: recorded whole, refused, views in place, other gradients."""

from collections.abc import Mapping
from typing import Final

import torch

from tmmu.torch_private import OpOverload

_aten: Final = torch.ops.aten

WHOLE_COMPOSITES: Final = frozenset({
    _aten.dropout.default,
    _aten.gru.input,
    _aten.linalg_eigvals.default,
    _aten.linalg_eigvalsh.default,
    _aten.linalg_svdvals.default,
    _aten.log_softmax.int,
    _aten.lstm.input,
    _aten.rnn_relu.input,
    _aten.rnn_tanh.input,
    _aten.scaled_dot_product_attention.default,
    _aten.softmax.int,
})  # fmt: skip
"""Composites that torch takes apart by the device, or computes by another algorithm for a tensor of a subclass.

They are recorded whole, so that the server's cpu takes them apart."""

CPU_KERNELS: Final = frozenset({
    _aten.mish_backward.default,
    _aten.native_channel_shuffle.default,
    _aten.silu_backward.default,
})  # fmt: skip
"""Composites for which the cpu has a kernel all the same: recorded, and differentiable, as if they were none."""

OTHER_GRADIENTS: Final[Mapping[OpOverload, int]] = {
    **dict.fromkeys((_aten.prod.default, _aten.prod.dim_int), 0),
    **dict.fromkeys((_aten.masked_fill.Tensor, _aten.masked_fill_.Tensor), 2),
}
"""Operators whose gradients autograd computes otherwise for tensors of a subclass: by the argument that needs one."""

EMPTY: Final = frozenset(
    "empty empty_like empty_permuted empty_strided new_empty new_empty_strided".split()  # noqa: SIM905
)
"""Operators that make memory which nobody has written: zeros, on the server."""
FREE_OF_GRADIENTS: Final = frozenset({_aten.detach.default, _aten.alias.default})
"""Operators that autograd never records."""
REFUSED: Final[Mapping[str, str]] = {
    "set": "gives a tensor another storage",
    "resize": "resizes a storage",
    "_conj": "makes a view that is conjugated without changing memory; use conj_physical()",
    "_neg_view": "makes a view that is negated without changing memory",
    "_to_sparse": "makes a tensor that is not dense",
    "to_sparse": "makes a tensor that is not dense",
    "_pin_memory": "pins memory, which is on the server",
    "_native_multi_head_attention": "is a layer as one kernel, which has other last bits than its parts",
    "_transformer_encoder_layer_fwd": "is a layer as one kernel, which has other last bits than its parts",
}
"""Why, by the operator's name without its overload."""
IN_PARTS: Final = frozenset({"_native_multi_head_attention", "_transformer_encoder_layer_fwd"})
"""Those of them that torch takes apart where it is told to."""
VIEWS_IN_PLACE: Final[Mapping[OpOverload, OpOverload]] = {
    _aten.squeeze_.default: _aten.squeeze.default,
    _aten.squeeze_.dim: _aten.squeeze.dim,
    _aten.squeeze_.dims: _aten.squeeze.dims,
    _aten.t_.default: _aten.t.default,
    _aten.transpose_.default: _aten.transpose.int,
    _aten.unsqueeze_.default: _aten.unsqueeze.default,
}
"""The view that an operator makes of its argument, in its place."""
