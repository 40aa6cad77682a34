"""Strides of results that no iterator over elements decides: contiguous, like an argument, or in its memory format."""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import torch

from tmmu.passes.capture.record.corrections.elementwise import is_canonical, is_dense, strides_beside
from tmmu.torch_private import OpOverload, disable_current_modes, suggest_memory_format

Rule: TypeAlias = Callable[[tuple[Any, ...], Any, str], Any]
"""From a call's arguments, its fake result and the target's device to the result as it really is."""

_aten: Final = torch.ops.aten

NEAREST: Final = frozenset(
    {
        *(_aten.upsample_nearest1d.default, _aten._upsample_nearest_exact1d.default),
        *(_aten.upsample_nearest2d.default, _aten._upsample_nearest_exact2d.default),
        *(_aten.upsample_nearest3d.default, _aten._upsample_nearest_exact3d.default),
    }
)
_KEEPS_FORMAT: Final = frozenset(
    {
        *(_aten.max_unpool2d.default, _aten.channel_shuffle.default, _aten.upsample_bilinear2d.default),
        *(_aten.upsample_bicubic2d.default, _aten.upsample_trilinear3d.default, *NEAREST),
    }
)
"""Operators whose real kernels leave a new result in the memory format that their argument is taken to be in.

One axis of one element decides between strides that are contiguous in two formats. Those of an upsampling are torch's
for every device, by ``TORCH_META_FUNC`` in its sources.
"""

_CONTIGUOUS: Final = frozenset(
    {
        *(_aten.log_sigmoid_forward.default, _aten._log_softmax_backward_data.default, _aten.pow.Scalar),
        *(_aten.mse_loss_backward.default, _aten.smooth_l1_loss_backward.default, _aten.huber_loss_backward.default),
        *(_aten.normal.float_Tensor, _aten.normal.Tensor_float, _aten.normal.Tensor_Tensor, _aten.poisson.default),
        *(_aten._standard_gamma.default, _aten.isin.Tensor_Tensor, _aten.isin.Tensor_Scalar),
        *(_aten._log_softmax.default, _aten._softmax_backward_data.default, _aten.native_layer_norm_backward.default),
        *(_aten.masked_fill.Scalar, _aten.masked_fill.Tensor, _aten.index_add.default, _aten.tril.default),
        *(_aten.triu.default, _aten.renorm.default, _aten.im2col.default, _aten.linalg_vector_norm.default),
        *(_aten.rrelu_with_noise.default, _aten.rrelu_with_noise_functional.default, _aten.glu_backward.default),
    }
)
"""Operators whose real kernels on a CPU leave contiguous results, whatever their arguments are."""

_RESHAPES: Final = frozenset({_aten.view.default, _aten._unsafe_view.default})
"""Operators whose fake kernels choose other strides for axes of one element."""

_LIKE: Final = frozenset(
    {
        *(_aten.empty_like.default, _aten.zeros_like.default, _aten.ones_like.default, _aten.full_like.default),
        *(_aten.rand_like.default, _aten.randn_like.default, _aten.flip.default, _aten.index_put.default),
        *(_aten.sort.default, _aten.sort.stable, _aten._prelu_kernel.default),
        *(_aten.binary_cross_entropy.default, _aten.huber_loss.default, _aten.nan_to_num.default),
        *(_aten.frexp.Tensor, _aten._scaled_dot_product_flash_attention_for_cpu.default),
    }
)
"""Operators whose real kernels leave results with the strides of their argument where that has no gaps."""

_PADS: Final = frozenset(
    {
        *(_aten.reflection_pad2d_backward.default, _aten.replication_pad2d_backward.default),
        *(_aten.reflection_pad3d.default, _aten.replication_pad3d.default),
    }
)
"""Operators whose real kernels on a CPU leave a new result in the memory format of their last tensor."""

_LIKE_SECOND: Final = frozenset(
    {
        *(_aten.binary_cross_entropy_backward.default, _aten.binary_cross_entropy_with_logits.default),
        _aten.nll_loss2d_backward.default,
    }
)
"""The same of their second argument."""
_LANCZOS_GRADIENT: Final = getattr(_aten, "_upsample_lanczos2d_aa_backward", None)
"""Not in torch 2.11. Contiguous too."""


def _view_layout(args: tuple[Any, ...], result: torch.Tensor, device: str) -> torch.Tensor:  # noqa: ARG001
    """The view with eager's strides along axes of one element, by which a product chooses its kernel."""
    source = args[0]
    if 1 not in result.shape or is_canonical(source):
        return result
    with disable_current_modes():
        form = torch.empty_strided(source.shape, source.stride(), dtype=source.dtype, device="meta")
        stride = form.view(result.shape).stride()
    return result if result.stride() == stride else result.as_strided(result.shape, stride)


def contiguous(args: tuple[Any, ...], result: Any, device: str) -> Any:
    """On a CPU, results with the strides of new tensors."""
    if device != "cpu" or result is None:
        return result
    if isinstance(result, tuple):
        return tuple(contiguous(args, part, device) for part in result)
    return _laid_out(result, torch.contiguous_format)


def _like(place: int) -> Rule:
    """On a CPU, results with the strides that a new tensor like the argument at ``place`` has."""

    def correct(args: tuple[Any, ...], result: Any, device: str) -> Any:
        if device != "cpu":
            return result
        if isinstance(result, tuple):
            return tuple(correct(args, part, device) for part in result)
        return _like_tensor(args[place], result)

    return correct


def _like_tensor(source: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    if result.shape != source.shape:
        return result
    stride = source.stride()
    if not is_dense(source.shape, stride):
        with disable_current_modes():
            stride = torch.empty_like(torch.empty_strided(source.shape, stride, device="meta")).stride()
    return result if result.stride() == stride else torch.empty_strided(result.shape, stride, dtype=result.dtype)


def _first_formatted(place: int) -> Rule:
    """On a CPU, the first of the results in the memory format that the argument at ``place`` is taken to be in."""

    def correct(args: tuple[Any, ...], result: Any, device: str) -> Any:
        if device != "cpu" or result[0] is None:
            return result
        return _laid_out(result[0], suggest_memory_format(args[place])), *result[1:]

    return correct


def _pad_layout(args: tuple[Any, ...], result: torch.Tensor, device: str) -> torch.Tensor:
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    return _laid_out(result, suggest_memory_format(tensors[-1])) if device == "cpu" else result


def _format_layout(args: tuple[Any, ...], result: torch.Tensor, device: str) -> torch.Tensor:  # noqa: ARG001
    return _laid_out(result, suggest_memory_format(args[0]))


def _laid_out(tensor: torch.Tensor, memory_format: torch.memory_format) -> torch.Tensor:
    """The tensor with the strides of a new one in this format, along axes of one element too."""
    with disable_current_modes():
        stride = torch.empty(tensor.shape, memory_format=memory_format, device="meta").stride()
    if tensor.stride() == stride:
        return tensor
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype)


def _batch_format(*tensors: torch.Tensor) -> torch.memory_format:
    """The format of a batch norm's result, for its kernel on a CPU: that of the last, where all are contiguous in one.

    By ``suggest_memory_format_contig`` in torch's sources: where one axis of one element decides, rows come first.
    """
    formats = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)
    fitting = [{form for form in formats if _is_in(tensor, form)} for tensor in tensors]
    if all(fitting) and len(set(map(suggest_memory_format, tensors))) == 1:
        return next(form for form in formats if form in fitting[-1])
    return suggest_memory_format(tensors[-1])


def _is_in(tensor: torch.Tensor, form: torch.memory_format) -> bool:
    axes = {torch.channels_last: 4, torch.channels_last_3d: 5}.get(form, tensor.dim())
    return tensor.dim() == axes and tensor.is_contiguous(memory_format=form)


def _batch_normalized(args: tuple[Any, ...], result: Any, device: str) -> Any:
    """On a CPU, a batch in the format that its kernel chooses."""
    return (_laid_out(result[0], _batch_format(args[0])), *result[1:]) if device == "cpu" else result


def _batch_gradients(args: tuple[Any, ...], result: Any, device: str) -> Any:
    """The same for the gradient of the batch."""
    if device != "cpu" or result[0] is None:
        return result
    return _laid_out(result[0], _batch_format(args[0], args[1])), *result[1:]


def _drop_layout(args: tuple[Any, ...], result: Any, device: str) -> Any:
    """On a CPU, a mask like the argument, and a result as the product of both is laid out."""
    if device != "cpu":
        return result
    mask = _like_tensor(args[0], result[1])
    is_product = args[2] is not False and args[1] not in (0, 1)
    fresh = torch.empty_like(result[0])  # the fake kernel hands the argument back where nothing is dropped
    return strides_beside([args[0], mask], fresh) if is_product else _like_tensor(args[0], fresh), mask


def _beside_first(args: tuple[Any, ...], result: torch.Tensor, device: str) -> torch.Tensor:
    """On a CPU, a result as the iterator lays it out beside the first argument alone."""
    return strides_beside([args[0]], result) if device == "cpu" and result.shape == args[0].shape else result


def _half_layout(args: tuple[Any, ...], result: torch.Tensor, device: str) -> torch.Tensor:
    """On a CPU, a result as the iterator lays it out beside the two halves of the argument."""
    if device != "cpu":
        return result
    axis = args[1] if len(args) > 1 else -1
    half = args[0].shape[axis] // 2
    return strides_beside([args[0].narrow(axis, 0, half), args[0].narrow(axis, half, half)], result)


def _roll_layout(args: tuple[Any, ...], result: torch.Tensor, device: str) -> torch.Tensor:
    """On a CPU, a result laid out as the concatenations are that make it, an axis at a time."""
    shifts, axes = args[1], args[2] if len(args) > 2 else ()
    if device != "cpu" or not axes or not result.numel():
        return result
    with disable_current_modes():
        form = torch.empty_strided(args[0].shape, args[0].stride(), device="meta")
        for shift, axis in zip(shifts, axes, strict=True):
            start = -shift % form.shape[axis]
            form = torch.cat((form.narrow(axis, start, form.shape[axis] - start), form.narrow(axis, 0, start)), axis)
        stride = form.stride()
    return result if result.stride() == stride else torch.empty_strided(result.shape, stride, dtype=result.dtype)


def _index_layout(args: tuple[Any, ...], result: torch.Tensor, device: str) -> torch.Tensor:
    """On a CPU, a result as the iterator lays it out beside the argument, restrided, and its one or two indices.

    Indexed axes move to the first of them where they are neighbours, else to the front, and have stride 0.
    """
    places = {axis: index for axis, index in enumerate(args[1]) if index is not None}
    is_known = all(index.dtype in (torch.int64, torch.int32) for index in places.values())
    if device != "cpu" or not is_known or not 1 <= len(places) <= 2:
        return result
    first = min(places) if max(places) - min(places) < len(places) else 0
    kept = [axis for axis in range(args[0].dim()) if axis not in places]
    before, after = kept[:first], kept[first:]
    chosen = torch.broadcast_shapes(*(index.shape for index in places.values()))  # type: ignore[no-untyped-call]
    shape, stride = args[0].shape, args[0].stride()
    with disable_current_modes():
        source = torch.empty_strided(
            [*(shape[axis] for axis in before), *chosen, *(shape[axis] for axis in after)],
            [*(stride[axis] for axis in before), *[0] * len(chosen), *(stride[axis] for axis in after)],
            device="meta",
        )
        forms = (torch.empty_strided(i.shape, i.stride(), device="meta").expand(chosen) for i in places.values())
        indices = [form.reshape([1] * len(before) + list(chosen) + [1] * len(after)) for form in forms]
    return strides_beside([source, *indices], result)


def _rotate_layout(args: tuple[Any, ...], result: torch.Tensor, device: str) -> torch.Tensor:
    """On a CPU, a flip whose two axes are then swapped."""
    turns, axes = args[1] if len(args) > 1 else 1, args[2] if len(args) > 2 else (0, 1)
    if device != "cpu" or turns % 4 == 0:
        return result
    if turns % 2 == 0:
        return _like_tensor(args[0], result)
    return _like_tensor(args[0], result.transpose(*axes)).transpose(*axes)


LAYOUT_RULES: Final[Mapping[OpOverload, Rule]] = {
    **dict.fromkeys(_RESHAPES, _view_layout),
    **dict.fromkeys(_CONTIGUOUS, contiguous),
    **dict.fromkeys(_LIKE, _like(0)),
    **dict.fromkeys(_LIKE_SECOND, _like(1)),
    **dict.fromkeys(_KEEPS_FORMAT, _format_layout),
    **dict.fromkeys(_PADS, _pad_layout),
    **({_LANCZOS_GRADIENT.default: contiguous} if _LANCZOS_GRADIENT else {}),
    _aten.native_group_norm.default: _first_formatted(0),
    _aten.native_group_norm_backward.default: _first_formatted(1),
    _aten.native_batch_norm.default: _batch_normalized,
    _aten.native_batch_norm_backward.default: _batch_gradients,
    _aten.native_dropout.default: _drop_layout,
    _aten.soft_margin_loss.default: _beside_first,
    _aten.glu.default: _half_layout,
    _aten.index.Tensor: _index_layout,
    _aten.roll.default: _roll_layout,
    _aten.rot90.default: _rotate_layout,
}
"""What a real kernel's result is laid out like, for operators whose fake kernels lay theirs out otherwise."""
