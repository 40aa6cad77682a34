"""Where fake kernels and real ones disagree, the recorder follows the real ones.

Three rules, applied to each call in this order: a call that a real kernel refuses is refused
(``require_real_kernel``), so that what a user would be told when running the model, they are told when planning; a call
that real kernels take and fake ones refuse gets its result here (``result_of_real_kernel``); a result whose dtype,
strides or size the fake kernel gets wrong is mended (``correct_result``). Each rule is a pure function of the call's
own arguments and knows its operators by name: a call of any other operator is left as it is. A new disagreement is
one more row or branch here, and a test in ``test_corrections.py`` that runs the real kernel.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, TypeAlias

import torch

from tmmu.errors import CaptureFailed, UnsupportedOp
from tmmu.torch_private import OpOverload, disable_current_modes, schema_of, suggest_memory_format

Rule: TypeAlias = Callable[[tuple[Any, ...], Any, str], Any]
"""From a call's arguments, its fake result and the target's device to the result as it really is."""

_aten: Final = torch.ops.aten
_HALF: Final = (torch.float16, torch.bfloat16)

_ONE_DTYPE: Final = frozenset(
    {
        _aten.mm.default,
        _aten.bmm.default,
        _aten.addmm.default,
        _aten.baddbmm.default,
        _aten.mv.default,
        _aten.dot.default,
        _aten.convolution.default,
    }
)
"""Operators whose real kernels want all their tensors in one dtype."""

_NEAREST: Final = frozenset(
    {
        *(_aten.upsample_nearest1d.default, _aten._upsample_nearest_exact1d.default),
        *(_aten.upsample_nearest2d.default, _aten._upsample_nearest_exact2d.default),
        *(_aten.upsample_nearest3d.default, _aten._upsample_nearest_exact3d.default),
    }
)
"""Operators whose fake kernels take no batch of no images."""
_KEEPS_FORMAT: Final = frozenset(
    {
        *(_aten.max_unpool2d.default, _aten.channel_shuffle.default, _aten.upsample_bilinear2d.default),
        *(_aten.upsample_bicubic2d.default, _aten.upsample_trilinear3d.default, *_NEAREST),
    }
)
"""Operators whose real kernels leave a new result in the memory format that their argument is taken to be in.

One axis of one element decides between strides that are contiguous in two formats. Those of an upsampling are torch's
for every device, by ``TORCH_META_FUNC`` in its sources.
"""
_FOLLOWS: Final = frozenset(
    {
        *(_aten.copysign.Tensor, _aten.floor_divide.default, _aten.special_xlog1py.default, _aten.xlogy.Tensor),
        *(_aten.elu_backward.default, _aten.hardsigmoid_backward.default, _aten.hardswish_backward.default),
        *(_aten.hardtanh_backward.default, _aten.logit_backward.default, _aten.native_dropout_backward.default),
        _aten.softplus_backward.default,
    }
)
"""Elementwise operators whose real kernels lay their result out as their arguments are, the first before the others."""
_GRADIENTS: Final = frozenset(
    {
        *(_aten.gelu_backward.default, _aten.leaky_relu_backward.default, _aten.sigmoid_backward.default),
        *(_aten.silu_backward.default, _aten.tanh_backward.default, _aten.threshold_backward.default),
    }
)
"""More elementwise operators, which torch does not tag as such."""
_CONTIGUOUS: Final = frozenset(
    {
        *(_aten.log_sigmoid_forward.default, _aten._log_softmax_backward_data.default, _aten.pow.Scalar),
        *(_aten.mse_loss_backward.default, _aten.smooth_l1_loss_backward.default, _aten.huber_loss_backward.default),
        *(_aten.normal.float_Tensor, _aten.normal.Tensor_float, _aten.normal.Tensor_Tensor, _aten.poisson.default),
        *(_aten._standard_gamma.default, _aten.isin.Tensor_Tensor, _aten.isin.Tensor_Scalar),
        *(_aten._log_softmax.default, _aten._softmax_backward_data.default, _aten.native_layer_norm_backward.default),
        *(_aten.masked_fill.Scalar, _aten.masked_fill.Tensor, _aten.index_add.default, _aten.tril.default),
        *(_aten.triu.default, _aten.renorm.default, _aten.im2col.default),
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
        _aten._scaled_dot_product_flash_attention_for_cpu.default,
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
_LANCZOS_GRADIENT: Final = getattr(_aten, "_upsample_lanczos2d_aa_backward", None)
"""Not in torch 2.11. Contiguous too."""
_BAGS: Final = frozenset({_aten._embedding_bag.default, _aten._embedding_bag_forward_only.default})

_MEAN_GRADIENTS: Final = frozenset(
    {_aten.mse_loss_backward.default, _aten.smooth_l1_loss_backward.default, _aten.huber_loss_backward.default}
)
"""Operators whose fake kernels divide by the number of elements, 0 too."""

_GATES: Final = 4
"""Of an LSTM: what a row of its weights is made of."""
_PAGE: Final = 4096
_QUANTIZED: Final = frozenset({torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4})


def first_unmodelled(value: Any) -> torch.Tensor | None:
    """The first tensor that is not a strided window on one storage, in nested tuples and lists."""
    if isinstance(value, (tuple, list)):
        return next((found for found in map(first_unmodelled, value) if found is not None), None)
    return value if isinstance(value, torch.Tensor) and value.layout is not torch.strided else None


def refusal_of_layout(func: OpOverload, tensor: torch.Tensor, name: str, forward_line: str) -> UnsupportedOp:
    """The error of a call that reads or makes such a tensor; of a gradient, with the line of its forward call."""
    layout = str(tensor.layout).removeprefix("torch.")
    subject = f"{name!r}, a {layout} tensor" if name else f"a {layout} tensor"
    what = f"{func} touches {subject}: only strided ones are modelled"
    if not forward_line:
        return UnsupportedOp(what, fix="make it dense: .to_dense()")
    fix = "make the gradient dense: sparse=False in what that line calls"
    return UnsupportedOp(f"{forward_line}: {what}", fix=fix, where=forward_line)


def result_of_real_kernel(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """The result of a call that real kernels take and fake ones refuse; ``None`` for any other."""
    if func in _MEAN_GRADIENTS and args[1].numel() == 0:
        return torch.empty_like(args[1])
    if func in _NEAREST and args[0].shape[0] == 0 and 0 not in args[0].shape[1:]:
        return torch.empty((*args[0].shape[:2], *args[1]), dtype=args[0].dtype)
    return _grouped_product(func, args, kwargs)


def _grouped_product(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """The result of ``aten._grouped_mm`` in the dtypes that real kernels take and the fake one refuses, not bf16."""
    if func is not _aten._grouped_mm.default or args[0].dtype not in (torch.float32, torch.float16):
        return None
    left, right = args[:2]
    if left.dtype is not right.dtype:
        raise CaptureFailed(f"{func} of {left.dtype} and {right.dtype}", fix="convert the inputs or the model")
    offsets = args[2] if len(args) > 2 else kwargs.get("offs")
    rows, columns = left.shape[-2], right.shape[-1]
    is_batched = left.dim() == right.dim()
    groups = (left.shape[0] if left.dim() == 3 else offsets.shape[0],) if is_batched else ()  # type: ignore[union-attr]
    return torch.empty((*groups, rows, columns), dtype=left.dtype)


def require_real_kernel(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse what a real kernel refuses: mixed dtypes in a product (``CAPTURE_FAILED``), quantized results."""
    if func in _ONE_DTYPE:
        dtypes = sorted({str(arg.dtype)[6:] for arg in args if isinstance(arg, torch.Tensor)})
        if len(dtypes) > 1:
            raise CaptureFailed(
                f"{func} of {' and '.join(dtypes)}: a real run refuses mixed dtypes",
                fix="convert the inputs or the model (--dtype), or use autocast (--autocast)",
            )
    elif func.namespace == "quantized" or _asks_for_quantized(args, kwargs):
        raise UnsupportedOp(f"{func} makes a quantized tensor", fix="plan the model before it is quantized")


def _asks_for_quantized(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a quantized dtype is asked for: the results of a fake kernel do not say so."""
    return any(isinstance(arg, torch.dtype) and arg in _QUANTIZED for arg in (*args, *kwargs.values()))


def correct_result(func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any, device: str) -> Any:
    """The result as a real kernel gives it: its dtypes, strides and sizes."""
    follows_argument = kwargs.get("memory_format") in (None, torch.preserve_format)
    rule = _RULES.get(func) if follows_argument else None
    result = result if rule is None else rule(args, result, device)
    return _iterated(func, args, result) if _is_elementwise(func) else result


@cache
def _is_elementwise(func: OpOverload) -> bool:
    """Whether torch's iterator over elements makes its one result; copies keep a memory format of their own."""
    signature = schema_of(func)
    if (
        func in _CONTIGUOUS
        or func in _LIKE
        or any(argument.name == "memory_format" for argument in signature.arguments)
    ):
        return False
    makes = len(signature.returns) == 1 and signature.returns[0].alias_info is None and not signature.is_mutable
    return makes and (torch.Tag.pointwise in func.tags or func in _FOLLOWS or func in _GRADIENTS)


def _iterated(func: OpOverload, args: tuple[Any, ...], result: Any) -> Any:
    """The result of an elementwise operator with the strides that torch's iterator gives it on real tensors.

    On meta tensors, and in fake kernels of their own, strides along axes of one element come out otherwise. Arguments
    of one shape are one run of elements where each is contiguous, and are followed where all have the same strides
    without gaps; else the iterator sorts the axes, for which a number is a tensor without axes.
    """
    if not isinstance(result, torch.Tensor):
        return result
    places = zip(args, schema_of(func).arguments, strict=False)
    tensors = [arg for arg, place in places if str(place.type) == "Tensor" or place.name == "other"]
    shaped = [tensor for tensor in tensors if isinstance(tensor, torch.Tensor)]
    if not shaped or (_is_canonical(result) and all(map(_is_canonical, shaped))):
        return result
    stride = _strides_of_run(result.shape, shaped) if len(shaped) == len(tensors) else None
    if stride is None and 1 in result.shape and func not in _GRADIENTS:
        stride = _strides_of_iterator(tensors)
    if stride is None or stride == result.stride():
        return result
    return torch.empty_strided(result.shape, stride, dtype=result.dtype)


def _strides_of_run(shape: torch.Size, tensors: list[torch.Tensor]) -> tuple[int, ...] | None:
    """The strides of a result whose arguments are walked as one run of elements; None where they are not."""
    if any(tensor.shape != shape for tensor in tensors):
        return None
    formats = (torch.contiguous_format, torch.channels_last) if len(shape) == 4 else (torch.contiguous_format,)
    for memory_format in formats:
        if all(tensor.is_contiguous(memory_format=memory_format) for tensor in tensors):
            with disable_current_modes():
                return torch.empty(shape, memory_format=memory_format, device="meta").stride()
    (stride, *others) = {tensor.stride() for tensor in tensors}
    return None if others or not _is_dense(shape, stride) else stride


def _is_dense(shape: torch.Size, stride: tuple[int, ...]) -> bool:
    """Whether the elements lie without gaps and without overlap, in some order of the axes."""
    step = 1
    for size, length in sorted((step, n) for n, step in zip(shape, stride, strict=True) if n > 1):
        if size != step:
            return False
        step *= length
    return True


def _strides_of_iterator(tensors: list[Any]) -> tuple[int, ...]:
    """The strides that the iterator gives a result of these arguments where it has to sort the axes."""
    with disable_current_modes():
        shapes = [(t.shape, t.stride()) if isinstance(t, torch.Tensor) else ((), ()) for t in tensors]
        forms = [torch.empty_strided(shape, stride, device="meta") for shape, stride in shapes]
        if len(forms) == 3:
            return torch.addcmul(*forms).stride()
        return sum(forms[2:], start=forms[0].add(forms[-1 if len(forms) < 2 else 1])).stride()


def _is_canonical(tensor: torch.Tensor) -> bool:
    """Whether it is contiguous, and each axis of one element has the stride that a new tensor gives it."""
    step = 1
    for n, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if stride != step:
            return False
        step *= max(n, 1)
    return True


def _following(args: tuple[Any, ...], result: torch.Tensor, device: str) -> torch.Tensor:  # noqa: ARG001
    """The result laid out as torch's iterator over elements does it for these arguments."""
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if all(map(_is_canonical, tensors)):
        return result
    with disable_current_modes():
        forms = [torch.empty_strided(tensor.shape, tensor.stride(), device="meta") for tensor in tensors]
        stride = sum(forms[1:], start=forms[0].add(1)).stride()
    if result.stride() == stride:
        return result
    return torch.empty_strided(result.shape, stride, dtype=result.dtype)


def _viewed(args: tuple[Any, ...], result: torch.Tensor, device: str) -> torch.Tensor:  # noqa: ARG001
    """The view with eager's strides along axes of one element, by which a product chooses its kernel."""
    source = args[0]
    if 1 not in result.shape or _is_canonical(source):
        return result
    with disable_current_modes():
        form = torch.empty_strided(source.shape, source.stride(), dtype=source.dtype, device="meta")
        stride = form.view(result.shape).stride()
    return result if result.stride() == stride else result.as_strided(result.shape, stride)


def _recurrent(args: tuple[Any, ...], result: Any, device: str) -> Any:  # noqa: ARG001
    """A layer of oneDNN's: what it keeps has bytes."""
    return *result[:3], _recurrent_workspace(*args)


def _recurrent_gradients(args: tuple[Any, ...], result: Any, device: str) -> Any:  # noqa: ARG001
    """The gradients of a layer's two biases are two tensors."""
    return *result[:4], torch.empty_like(result[3]), *result[5:]


def _recurrent_workspace(x: torch.Tensor, weight: torch.Tensor, *_: Any) -> torch.Tensor | None:
    """What oneDNN keeps of an LSTM layer for its gradient: ``uint8[bytes]``, nothing where gradients are off.

    Gates, states and their gradients of ``steps`` times ``rows``, each array on pages of its own. Rows of most of them
    are padded to 64 bytes, and by as much again where they are a multiple of 1,024. Found by trying: 1,500 shapes, in
    the builds of torch 2.11, 2.13 and 2.14.
    """
    if not torch.is_grad_enabled():
        return None
    steps, rows, features = x.shape
    hidden = weight.shape[0] // _GATES
    state, padded_input = _padded_row(hidden), _padded_row(max(features, hidden))
    arrays = [steps * _padded_row(_GATES * hidden), steps * state]
    arrays += [2 * (steps + 1) * padded_input] * 3 + [2 * (steps + 1) * hidden] * 2
    return torch.empty(sum(-(-4 * rows * array // _PAGE) * _PAGE for array in arrays), dtype=torch.uint8)


def _padded_row(elements: int) -> int:
    row = -(-elements // 16) * 16
    return row + 16 if row % 256 == 0 else row


def _contiguous(args: tuple[Any, ...], result: Any, device: str) -> Any:
    if device != "cpu" or result is None:
        return result
    if isinstance(result, tuple):
        return tuple(_contiguous(args, part, device) for part in result)
    return _laid_out(result, torch.contiguous_format)


def _like_first(args: tuple[Any, ...], result: Any, device: str) -> Any:
    """On a CPU, a result with the strides of the first argument, as a new tensor like that one has them."""
    if device != "cpu":
        return result
    if isinstance(result, tuple):
        return tuple(_like_first(args, part, device) for part in result)
    source = args[0]
    if result.shape != source.shape or result.stride() == source.stride():
        return result
    if not _is_dense(source.shape, source.stride()):
        return result
    return torch.empty_strided(result.shape, source.stride(), dtype=result.dtype)


def _group_normalized(args: tuple[Any, ...], result: Any, device: str) -> Any:
    return (_formatted(args, result[0], device), *result[1:]) if device == "cpu" else result


def _padded(args: tuple[Any, ...], result: torch.Tensor, device: str) -> torch.Tensor:
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    return _laid_out(result, suggest_memory_format(tensors[-1])) if device == "cpu" else result


def _formatted(args: tuple[Any, ...], result: torch.Tensor, device: str) -> torch.Tensor:  # noqa: ARG001
    return _laid_out(result, suggest_memory_format(args[0]))


def _like_second(args: tuple[Any, ...], result: torch.Tensor, device: str) -> torch.Tensor:  # noqa: ARG001
    return torch.empty_like(args[1])


def _laid_out(tensor: torch.Tensor, memory_format: torch.memory_format) -> torch.Tensor:
    """The tensor with the strides of a new one in this format, along axes of one element too."""
    with disable_current_modes():
        stride = torch.empty(tensor.shape, memory_format=memory_format, device="meta").stride()
    if tensor.stride() == stride:
        return tensor
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype)


def _batch_normalized(args: tuple[Any, ...], result: Any, device: str) -> Any:
    """On a CPU, a result of a contiguous batch has a new tensor's strides."""
    if device != "cpu" or not args[0].is_contiguous() or _is_canonical(result[0]):
        return result
    return torch.empty(result[0].shape, dtype=result[0].dtype), *result[1:]


def _bag_sums(func: OpOverload) -> Rule:
    """Bags of bfloat16 are summed like those of float16: by a kernel that needs no table of bags."""

    def correct(args: tuple[Any, ...], result: Any, device: str) -> Any:
        if device != "cpu" or args[0].dtype is not torch.bfloat16:
            return result
        sums, *tables = func(*(arg.to(torch.float16) if _is_brief(arg) else arg for arg in args))
        del sums
        return result[0], *tables

    return correct


def _is_brief(arg: Any) -> bool:
    return isinstance(arg, torch.Tensor) and arg.dtype is torch.bfloat16


def _normalized(args: tuple[Any, ...], result: Any, device: str) -> Any:
    """Statistics are in single precision on a GPU, and on a CPU where the weight is in single precision."""
    result = _contiguous(args, result, device)
    if args[0].dtype not in _HALF:
        return result
    weight = args[2]
    single = device == "cuda" or (isinstance(weight, torch.Tensor) and weight.dtype is torch.float32)
    if not single:
        return result
    out, mean, deviation = result
    return out, *(torch.empty_strided(t.shape, t.stride(), dtype=torch.float32) for t in (mean, deviation))


_RULES: Final[Mapping[OpOverload, Rule]] = {
    **dict.fromkeys(_RESHAPES, _viewed),
    **dict.fromkeys(_FOLLOWS, _following),
    **dict.fromkeys(_KEEPS_FORMAT, _formatted),
    **dict.fromkeys(_CONTIGUOUS, _contiguous),
    **dict.fromkeys(_LIKE, _like_first),
    **dict.fromkeys(_PADS, _padded),
    **({_LANCZOS_GRADIENT.default: _contiguous} if _LANCZOS_GRADIENT else {}),
    **{func: _bag_sums(func) for func in _BAGS},
    _aten.binary_cross_entropy_backward.default: _like_second,
    _aten.native_layer_norm.default: _normalized,
    _aten.native_group_norm.default: _group_normalized,
    _aten.native_batch_norm.default: _batch_normalized,
    _aten.mkldnn_rnn_layer.default: _recurrent,
    _aten.mkldnn_rnn_layer_backward.default: _recurrent_gradients,
}
