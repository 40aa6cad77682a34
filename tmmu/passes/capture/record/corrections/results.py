"""Calls that real kernels refuse, take or answer otherwise than fake ones do."""

from collections.abc import Mapping
from typing import Any, Final

import torch

from tmmu.errors import CaptureFailed, UnsupportedOp
from tmmu.passes.capture.record.corrections.bags import BAG_RULES
from tmmu.passes.capture.record.corrections.convolutions import CONVOLUTION_RULES
from tmmu.passes.capture.record.corrections.elementwise import FOLLOWS, following, is_elementwise, iterated
from tmmu.passes.capture.record.corrections.layouts import LAYOUT_RULES, NEAREST, Rule
from tmmu.passes.capture.record.corrections.lstm import recurrent, recurrent_gradients
from tmmu.passes.capture.record.corrections.norms import NORM_RULES
from tmmu.passes.operators.schema import signature
from tmmu.torch_private import OpOverload

_aten: Final = torch.ops.aten

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

_MEAN_GRADIENTS: Final = frozenset(
    {_aten.mse_loss_backward.default, _aten.smooth_l1_loss_backward.default, _aten.huber_loss_backward.default}
)
"""Operators whose fake kernels divide by the number of elements, 0 too."""

_WAIT: Final = "_c10d_functional.wait_tensor.default"
"""Gives back the tensor that a collective wrote; its fake kernel makes another one."""
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
    if signature(func).name == _WAIT:
        waited: torch.Tensor = args[0]
        return waited
    if func in _MEAN_GRADIENTS and args[1].numel() == 0:
        return torch.empty_like(args[1])
    if func in NEAREST and args[0].shape[0] == 0 and 0 not in args[0].shape[1:]:
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
    return iterated(func, args, result) if func not in LAYOUT_RULES and is_elementwise(func) else result


_RULES: Final[Mapping[OpOverload, Rule]] = {
    **LAYOUT_RULES,
    **dict.fromkeys(FOLLOWS, following),
    **BAG_RULES,
    **NORM_RULES,
    **CONVOLUTION_RULES,
    _aten.mkldnn_rnn_layer.default: recurrent,
    _aten.mkldnn_rnn_layer_backward.default: recurrent_gradients,
}
