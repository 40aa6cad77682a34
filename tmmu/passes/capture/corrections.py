"""Where fake kernels and real ones disagree: calls that one of them refuses, results of another dtype, lazy views.

Fake kernels mostly check less than real ones. What a user would be told when running the model, they are told when
planning.
"""

from typing import Any, Final

import torch
from torch._ops import OpOverload

from tmmu.errors import CaptureFailed, UnsupportedOp

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

_LAZY: Final = {
    _aten._conj.default: _aten._conj_physical.default,
    _aten._neg_view.default: _aten.neg.default,
}
"""Views that only remember to conjugate or negate, and the operators that do it. A window cannot remember."""

_QUANTIZED: Final = frozenset({torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4})


def done_at_once(func: OpOverload) -> OpOverload:
    """The operator to record in place of one that puts its work off until its result is read."""
    return _LAZY.get(func, func)


def refused_by_fakes(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """The result of a call that real kernels take and fake ones do not: grouped products in other dtypes than bf16."""
    if func is not _aten._grouped_mm.default or args[0].dtype not in (torch.float32, torch.float16):
        return None
    one, other = args[:2]
    if one.dtype is not other.dtype:
        raise CaptureFailed(f"{func} of {one.dtype} and {other.dtype}", fix="convert the inputs or the model")
    offsets = args[2] if len(args) > 2 else kwargs.get("offs")
    rows, columns = one.shape[-2], other.shape[-1]
    both = one.dim() == other.dim()
    groups = (one.shape[0] if one.dim() == 3 else offsets.shape[0],) if both else ()  # type: ignore[union-attr]
    return torch.empty((*groups, rows, columns), dtype=one.dtype)


def require_real(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Returns where a real run would go on."""
    if func in _ONE_DTYPE:
        dtypes = sorted({str(arg.dtype)[6:] for arg in args if isinstance(arg, torch.Tensor)})
        if len(dtypes) > 1:
            raise CaptureFailed(
                f"{func} of {' and '.join(dtypes)}: a real run refuses mixed dtypes",
                fix="convert the inputs or the model, or use autocast",
            )
    elif func.namespace == "quantized" or _asks_for_quantized(args, kwargs):
        raise UnsupportedOp(f"{func} makes a quantized tensor", fix="plan the model before it is quantized")


def _asks_for_quantized(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a quantized dtype is asked for: the results of a fake kernel do not say so."""
    return any(isinstance(arg, torch.dtype) and arg in _QUANTIZED for arg in (*args, *kwargs.values()))


def corrected(func: OpOverload, args: tuple[Any, ...], result: Any, device: str) -> Any:
    """The result as a real kernel gives it: layer norm keeps its statistics in single precision on a GPU,
    and on a CPU where the weight is in single precision."""
    if func is not _aten.native_layer_norm.default or args[0].dtype not in _HALF:
        return result
    weight = args[2]
    single = device == "cuda" or (isinstance(weight, torch.Tensor) and weight.dtype is torch.float32)
    if not single:
        return result
    out, mean, deviation = result
    return out, *(torch.empty_strided(t.shape, t.stride(), dtype=torch.float32) for t in (mean, deviation))
