"""What calls are held to beside torch's own checks: sizes that a kernel trusts, what it computes, what it allocates.

Kernels are called below the functions that check their arguments for a Python program, so what such a function would
have checked is checked here.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Final, TypeAlias

import torch

from tmmu.errors import InvalidRequest
from tmmu.passes.shapes.inference import TensorGeometry
from tmmu.runtime.memory.allocated import reach_bytes
from tmmu.server.graphs.call_forms import OperatorCall
from tmmu.wire.graph_operators import packet_name

Arguments: TypeAlias = Mapping[str, Any]
_MOST_STEPS: Final = 1 << 14
"""Of a composite that calls operators for each element of an axis: tens of microseconds each, uninterrupted."""
_HALF_TIMES: Final = 8
"""Of 16 bits and less: 39 on a processor without units for them, below 1 on one that has some."""
_WHOLE_TIMES: Final = 128
"""Of whole numbers, for which there is no library: 106 were measured."""
_GATES: Final = 4
"""Of an LSTM, one behind the other in each of its weights."""


def require_sizes(call: OperatorCall, arguments: Arguments) -> None:
    """``INVALID_REQUEST`` for sizes that the kernel of a call would trust and that are not so."""
    rule = _RULES.get(packet_name(str(call.operator)))
    if rule is not None and not rule(arguments):
        raise InvalidRequest(f"{call.operator}: sizes do not fit", fix="give the operator what it takes")


def multiply_adds(call: OperatorCall, arguments: Arguments, results: Sequence[TensorGeometry | None]) -> int:
    """About how many a call computes, as many of float32 as take the time; elements alone for what is no product."""
    tensors = (*_tensors(tuple(arguments.values())), *results)
    elements, formula = sum(map(_elements, tensors)), _WORK.get(packet_name(str(call.operator)))
    if formula is None:
        return elements
    times = max((_times_of(form.dtype) for form in tensors if form is not None), default=1)
    return elements + times * formula(arguments, sum(map(_elements, results)))


def _times_of(dtype: torch.dtype) -> int:
    """How many multiply-adds of float32 one of a dtype takes."""
    if dtype.is_complex:
        return 4 * (dtype.itemsize // 8)
    if dtype.is_floating_point:
        return {8: 2, 4: 1}.get(dtype.itemsize, _HALF_TIMES)
    return _WHOLE_TIMES


def kernel_bytes(call: OperatorCall, arguments: Arguments, results: Sequence[TensorGeometry | None]) -> int:
    """At most how many bytes a kernel allocates beside its results, where that may be more than its arguments.

    Windows that show an element many times are written out; attention may have its scores, a convolution its columns.
    """
    tensors = _tensors(tuple(arguments.values()))
    written_out = sum(max(_elements(form) * form.dtype.itemsize - _reach(form), 0) for form in tensors)
    name = packet_name(str(call.operator))
    if name == "scaled_dot_product_attention":
        query, key = arguments["query"], arguments["key"]
        return int(written_out + 4 * prod(query.shape[:-1]) * key.shape[-2] * query.dtype.itemsize)
    if name in ("convolution", "convolution_backward"):
        gradient = arguments.get("grad_output")
        weight, size = arguments["weight"], sum(map(_elements, results if gradient is None else (gradient,)))
        return int(written_out + size * _inner(weight) // max(weight.shape[0], 1) * weight.dtype.itemsize)
    return written_out


def _elements(form: TensorGeometry | None) -> int:
    return 0 if form is None else prod(form.shape)


def _reach(form: TensorGeometry) -> int:
    return reach_bytes(form.shape, form.stride, form.dtype.itemsize)


def _inner(weight: TensorGeometry) -> int:
    return _elements(weight) // max(weight.shape[0], 1) if weight.shape else 0


def _is_dense(form: TensorGeometry) -> bool:
    return _elements(form) * form.dtype.itemsize == _reach(form)


def _tensors(value: Any) -> list[TensorGeometry]:
    if isinstance(value, TensorGeometry):
        return [value]
    return [form for item in value for form in _tensors(item)] if isinstance(value, (tuple, list)) else []


def _has_channels(arguments: Arguments) -> bool:
    """Statistics and weights have a number for each channel of the input."""
    shape = arguments["input"].shape
    vectors = [arguments.get(name) for name in ("weight", "bias", "running_mean", "running_var")]
    return len(shape) >= 2 and all(form is None or form.shape == (shape[1],) for form in vectors)


def _has_groups(arguments: Arguments) -> bool:
    """The numbers of a group norm are those of its input."""
    shape, channels = arguments["input"].shape, arguments["C"]
    sizes = (arguments["N"], channels, arguments["HxW"])
    vectors = [arguments.get(name) for name in ("weight", "bias")]
    return (
        len(shape) >= 2
        and (shape[0], shape[1], prod(shape[2:])) == sizes
        and arguments["group"] > 0
        and channels % arguments["group"] == 0
        and all(form is None or form.shape == (channels,) for form in vectors)
    )


def _has_axes(arguments: Arguments) -> bool:
    """Axes of a transform are axes of its input, each once."""
    axes, count = arguments["dim"], len(arguments["self"].shape)
    return len(set(axes)) == len(axes) > 0 and all(0 <= axis < count for axis in axes)


def _has_recurrent_weights(arguments: Arguments) -> bool:
    """An LSTM's weights and states are those of its layers and directions."""
    states, weights = arguments["hx"], arguments["params"]
    layers, directions = arguments["num_layers"], 1 + bool(arguments["bidirectional"])
    each = 4 if arguments["has_biases"] else 2
    if len(states) != 2 or len(weights) != layers * directions * each or len(arguments["input"].shape) != 3:
        return False
    hidden, width = states[0].shape[-1], arguments["input"].shape[2]
    batch = arguments["input"].shape[0 if arguments["batch_first"] else 1]
    if any(state.shape != (layers * directions, batch, hidden) for state in states):
        return False
    expected: list[tuple[int, ...]] = []
    for layer in range(layers):
        read = width if layer == 0 else hidden * directions
        shapes = [(_GATES * hidden, read), (_GATES * hidden, hidden), (_GATES * hidden,), (_GATES * hidden,)][:each]
        expected += shapes * directions
    return [weight.shape for weight in weights] == expected


def _has_dense_rows(arguments: Arguments) -> bool:
    """The gradient of a layer norm has the shape of its input, and dense statistics of each row."""
    shape, normalized = arguments["input"].shape, tuple(arguments["normalized_shape"])
    rows = prod(shape[: len(shape) - len(normalized)])
    statistics: list[TensorGeometry] = [arguments["mean"], arguments["rstd"]]
    fits = [_elements(form) == rows and _is_dense(form) for form in statistics]
    return bool(arguments["grad_out"].shape == shape) and all(fits)


def _has_batch_statistics(arguments: Arguments) -> bool:
    """The gradient of a batch norm has the shape of its input, and saved statistics of each channel, or none."""
    shape = arguments["input"].shape
    saved = [arguments.get(name) for name in ("save_mean", "save_invstd")]
    return (
        _has_channels(arguments)
        and arguments["grad_out"].shape == shape
        and all(form is None or (form.shape in ((shape[1],), (0,)) and _is_dense(form)) for form in saved)
        and (not arguments["train"] or all(form is not None and form.shape == (shape[1],) for form in saved))
        and (bool(arguments["train"]) or arguments.get("running_mean") is not None)
    )


def _has_unscaled_rows(arguments: Arguments) -> bool:
    """The gradient of an embedding has a row for each index; counts of indices would be kept by the indices."""
    rows, indices = arguments["grad_output"].shape, arguments["indices"].shape
    return not arguments["scale_grad_by_freq"] and len(rows) > 0 and rows[:-1] == indices


def _is_reduced(arguments: Arguments) -> bool:
    """The gradient of a loss that was not summed writes by its targets, unchecked."""
    return arguments["reduction"] in (1, 2)


def _has_leading_axes(arguments: Arguments) -> bool:
    """The gradient of a pooling has the batch and channels of its input."""
    shape, gradient = arguments["self"].shape, arguments["grad_output"].shape
    return len(shape) in (3, 4) and len(gradient) == len(shape) and bool(gradient[:-2] == shape[:-2])


def _has_convolved_shape(arguments: Arguments) -> bool:
    """The gradient of a convolution has the shape that the convolution returned; none of a transposed one is known."""
    shape, kernel, groups = arguments["input"].shape, arguments["weight"].shape, arguments["groups"]
    axes = len(shape) - 2
    steps = [arguments[name] for name in ("stride", "padding", "dilation")]
    if arguments["transposed"] or axes < 1 or len(kernel) != len(shape) or any(len(step) != axes for step in steps):
        return False
    if groups < 1 or kernel[1] * groups != shape[1] or kernel[0] % groups or min(*steps[0], *steps[2]) < 1:
        return False
    sizes = [
        (size + 2 * padding - dilation * (length - 1) - 1) // stride + 1
        for size, length, stride, padding, dilation in zip(shape[2:], kernel[2:], *steps, strict=True)
    ]
    return bool(arguments["grad_output"].shape == (shape[0], kernel[0], *sizes))


def _has_heads(arguments: Arguments) -> bool:
    """Attention of equal heads, keys and values alike, and a mask that is spread over the scores, without dropout."""
    query, key, value = (arguments[name].shape for name in ("query", "key", "value"))
    if len(query) != 4 or len(key) != 4 or key != value or query[:2] != key[:2] or query[3] != key[3]:
        return False
    mask, scores = arguments.get("attn_mask"), (*query[:3], key[2])
    fits = mask is None or (
        len(mask.shape) in (2, 4)
        and all(size in (1, most) for size, most in zip(reversed(mask.shape), reversed(scores), strict=False))
    )
    return fits and arguments["dropout_p"] == 0


def _has_attended(arguments: Arguments) -> bool:
    """The gradient of attention: what it returned, and a dense row of sums."""
    query, sums = arguments["query"].shape, arguments["logsumexp"]
    return bool(
        _has_heads(arguments)
        and arguments["grad_out"].shape == arguments["out"].shape == query
        and sums.shape == query[:3]
        and _is_dense(sums)
    )


_INTERPOLATIONS: Final = (
    "_upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d "
    "_upsample_nearest_exact3d upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d "
    "upsample_nearest2d upsample_nearest3d upsample_trilinear3d"
)


def _has_modes(arguments: Arguments) -> bool:
    """How a grid is sampled: the kernel leaves its result as it was allocated for numbers that it does not know."""
    return arguments["interpolation_mode"] in (0, 1) and arguments["padding_mode"] in (0, 1, 2)


def _has_own_scales(arguments: Arguments) -> bool:
    """Scales of an interpolation are those of its sizes: the kernel allocates weights by them."""
    if "scale_factors" in arguments:  # the size is computed from them
        return True
    sizes, results = arguments["self"].shape[2:], arguments["output_size"]
    names = ("scales",) if "scales" in arguments else ("scales_d", "scales_h", "scales_w")[-len(sizes) :]
    scales = [arguments[name] for name in names]
    return len(sizes) == len(results) == len(scales) and all(
        scale is None or not scale > 0 or abs(size * scale - result) <= 1
        for size, result, scale in zip(sizes, results, scales, strict=True)
    )


def _has_few_steps(arguments: Arguments) -> bool:
    """A recurrence calls operators for each step of each of its layers."""
    shape, directions = arguments["input"].shape, 1 + bool(arguments["bidirectional"])
    steps = shape[1 if arguments["batch_first"] else 0] if len(shape) == 3 else 0
    return bool(len(shape) == 3 and 0 <= steps * arguments["num_layers"] * directions <= _MOST_STEPS)


def _has_few_slices(arguments: Arguments) -> bool:
    """A trilinear product calls operators for each element of the axis that it does not take at once."""
    sizes = []
    for name in ("1", "2", "3"):
        shape = list(arguments[f"i{name}"].shape)
        for axis in sorted(arguments[f"expand{name}"]):
            shape.insert(axis, 1)
        if not 0 <= arguments["unroll_dim"] < len(shape):
            return False
        sizes.append(shape[arguments["unroll_dim"]])
    return bool(max(sizes) <= _MOST_STEPS)


_RULES: Final[Mapping[str, Callable[[Arguments], bool]]] = {
    "_adaptive_avg_pool2d_backward": _has_leading_axes,
    "_scaled_dot_product_flash_attention_for_cpu": _has_heads,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _has_attended,
    "convolution_backward": _has_convolved_shape,
    "embedding_dense_backward": _has_unscaled_rows,
    "native_batch_norm_backward": _has_batch_statistics,
    "native_layer_norm_backward": _has_dense_rows,
    "nll_loss_backward": _is_reduced,
    "_fft_c2c": _has_axes,
    "_fft_r2c": _has_axes,
    "_native_batch_norm_legit": _has_channels,
    "_native_batch_norm_legit_no_training": _has_channels,
    "_trilinear": _has_few_slices,
    "grid_sampler_3d": _has_modes,
    "lstm": lambda arguments: _has_few_steps(arguments) and _has_recurrent_weights(arguments),
    **dict.fromkeys(("gru", "rnn_tanh", "rnn_relu"), _has_few_steps),
    **dict.fromkeys(_INTERPOLATIONS.split(), _has_own_scales),
    "native_batch_norm": _has_channels,
    "native_group_norm": _has_groups,
}


def _product(name: str) -> Callable[[Arguments, int], int]:
    """Each element of the result is a sum over the last axis of a factor."""
    return lambda arguments, size: size * (arguments[name].shape[-1] if arguments[name].shape else 1)


def _convolution(arguments: Arguments, size: int) -> int:
    weight: TensorGeometry = arguments["weight"]
    return max(size, _elements(arguments["input"])) * _inner(weight)


def _attention(arguments: Arguments, size: int) -> int:
    del size
    query, key = arguments["query"], arguments["key"]
    return int(_elements(query) * key.shape[-2] * 2) if len(key.shape) > 1 else 0


def _recurrence(arguments: Arguments, size: int) -> int:
    del size
    return int(prod(arguments["input"].shape[:2])) * sum(map(_elements, arguments["params"]))


def _factorization(arguments: Arguments, size: int) -> int:
    """Cubic in the larger axis of each matrix, ten times over."""
    del size
    form = next(iter(_tensors(tuple(arguments.values()))), None)
    return 0 if form is None else 10 * _elements(form) * max(form.shape[-2:], default=1)


_FACTORIZATIONS: Final = (
    "linalg_cholesky_ex linalg_eig linalg_eigvals linalg_eigvalsh linalg_svdvals linalg_householder_product "
    "linalg_inv_ex linalg_lu linalg_lu_factor_ex linalg_matrix_exp linalg_pinv linalg_qr linalg_solve_triangular "
    "_linalg_det _linalg_eigh _linalg_eigvals _linalg_slogdet _linalg_solve_ex _linalg_svd"
)
_WORK: Final[Mapping[str, Callable[[Arguments, int], int]]] = {
    "addbmm": lambda arguments, size: _elements(arguments["batch1"]) * arguments["batch2"].shape[-1] + size,
    "addmm": _product("mat1"),
    "addmv": _product("mat"),
    "baddbmm": _product("batch1"),
    "bmm": _product("self"),
    "mm": _product("self"),
    "_int_mm": _product("self"),
    "_cdist_forward": _product("x1"),
    "_euclidean_dist": _product("x1"),
    "_pdist_forward": _product("self"),
    "_trilinear": lambda arguments, size: size * max(_elements(arguments["i1"]), _elements(arguments["i2"])),
    "convolution": _convolution,
    "convolution_backward": lambda arguments, _: 2 * _elements(arguments["grad_output"]) * _inner(arguments["weight"]),
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": lambda arguments, size: 3 * _attention(arguments, size),
    "scaled_dot_product_attention": _attention,
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _recurrence),
    **dict.fromkeys(_FACTORIZATIONS.split(), _factorization),
}
