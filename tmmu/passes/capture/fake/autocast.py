"""Mixed precision as the target does it, on a machine without one.

``torch.autocast("cuda")`` turns itself off where there is no GPU, and a CPU's lists of operators differ from a GPU's.
On the ``cuda`` target every autocast region follows the GPU's lists: products in half precision, as on a CPU, and
beside them the operators below in single precision.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from tmmu.passes.capture.replace import replace_attribute
from tmmu.torch_private import DisablePythonDispatcher, DispatchKey, OpOverload, forget_kernels

_aten: Final = torch.ops.aten
_KEY: Final = DispatchKey.AutogradCPU
"""Where a rule can stand: operators that a CPU's autocast leaves alone skip the autocast key itself."""

_HALF: Final = (torch.float16, torch.bfloat16)

SINGLE_ON_CUDA: Final[tuple[OpOverload, ...]] = (
    _aten.acos.default, _aten.asin.default, _aten.cosh.default, _aten.cumprod.default, _aten.cumsum.default,
    _aten.dist.default, _aten.erfinv.default, _aten.exp.default, _aten.expm1.default, _aten.group_norm.default,
    _aten.kl_div.default, _aten.l1_loss.default, _aten.layer_norm.default, _aten.log.default, _aten.log10.default,
    _aten.log1p.default, _aten.log2.default, _aten.mse_loss.default, _aten.nll_loss.default,
    _aten.nll_loss_nd.default, _aten.norm.Scalar, _aten.norm.ScalarOpt_dim, _aten.pow.Tensor_Scalar,
    _aten.pow.Tensor_Tensor, _aten.pow.Scalar, _aten.prod.default, _aten.prod.dim_int, _aten.reciprocal.default,
    _aten.rsqrt.default, _aten.sinh.default, _aten.smooth_l1_loss.default, _aten.soft_margin_loss.default,
    _aten.softplus.default, _aten.sum.default, _aten.sum.dim_IntList, _aten.tan.default,
)  # fmt: skip
"""The operators that autocast runs in single precision on CUDA (torch's documented list); softmax has its own rule."""


@contextmanager
def autocast_for(device: str) -> Iterator[None]:
    """Block in which autocast regions for any device type are active, with the lists of ``device``."""
    region = torch.amp.autocast_mode.autocast
    saved = {op: dict(op.py_kernels) for op in SINGLE_ON_CUDA} if device == "cuda" else {}
    for op in saved:
        op.py_kernels[_KEY] = _single_precision_rule(op)
    forget_kernels(saved)
    try:
        with replace_attribute(region, "__init__", _init_on_traced_device(region.__init__)):
            yield
    finally:
        for op, kernels in saved.items():
            op.py_kernels.clear()
            op.py_kernels.update(kernels)
        forget_kernels(saved)


def _init_on_traced_device(original: Callable[..., None]) -> Callable[..., None]:
    """The constructor of ``torch.autocast``, for the device that is traced, with the asked device's default dtype."""

    def init(self: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None) -> None:  # noqa: FBT001, FBT002
        if dtype is None and device_type == "cuda":
            dtype = torch.get_autocast_dtype("cuda")
        original(self, "cpu", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

    return init


def _single_precision_rule(op: OpOverload) -> Callable[..., Any]:
    """The operator itself, on arguments in single precision inside an autocast region."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if torch.is_autocast_enabled("cpu"):
            args = tuple(_to_single(arg) for arg in args)
            kwargs = {key: _to_single(value) for key, value in kwargs.items()}
        with DisablePythonDispatcher():
            return op(*args, **kwargs)

    return run


def _to_single(value: Any) -> Any:
    is_half = isinstance(value, torch.Tensor) and value.dtype in _HALF
    return value.to(torch.float32) if is_half else value
