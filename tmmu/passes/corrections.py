"""Where fake kernels and real ones disagree: calls that a real run refuses, results of another dtype.

Fake kernels check less than real ones. What a user would be told when running the model, they are told when planning.
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


def require_real(func: OpOverload, args: tuple[Any, ...]) -> None:
    """Returns where a real run would go on."""
    if func in _ONE_DTYPE:
        dtypes = sorted({str(arg.dtype)[6:] for arg in args if isinstance(arg, torch.Tensor)})
        if len(dtypes) > 1:
            raise CaptureFailed(
                f"{func} of {' and '.join(dtypes)}: a real run refuses mixed dtypes",
                fix="convert the inputs or the model, or use autocast",
            )
    elif func.namespace == "quantized" or "quantize_per" in func._schema.name:
        raise UnsupportedOp(f"{func} makes a quantized tensor", fix="plan the model before it is quantized")


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
