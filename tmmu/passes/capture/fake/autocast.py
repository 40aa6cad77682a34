"""Mixed precision as the target does it, on a machine without one.

``torch.autocast("cuda")`` turns itself off where there is no GPU, and a CPU's lists of operators differ from a GPU's.
On the ``cuda`` target every autocast region follows the GPU's lists: products in half precision, as on a CPU, and
beside them the operators below in single precision.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
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
    """Block in which autocast is what it is on ``device``: on ``cuda`` regions for any device type are active.

    On ``cpu`` torch is left as it is: a region for a GPU does nothing to a CPU's tensors.
    """
    if device != "cuda":
        yield
        return
    region = torch.amp.autocast_mode.autocast
    saved = {op: dict(op.py_kernels) for op in SINGLE_ON_CUDA}
    for op in saved:
        op.py_kernels[_KEY] = _single_precision_rule(op)
    forget_kernels(saved)
    try:
        with replace_attribute(region, "__init__", _init_on_traced_device(region.__init__)), _traced_switches():
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


@contextmanager
def _traced_switches() -> Iterator[None]:
    """Block in which torch's functions for autocast ask and set the device that is traced, whichever they name.

    A model asks whether a region is active, and of which dtype, or begins one without a block: all is as it was
    afterwards.
    """
    is_enabled, enable = torch.is_autocast_enabled, torch.set_autocast_enabled
    dtype_of, set_dtype = torch.get_autocast_dtype, torch.set_autocast_dtype

    def is_autocast_enabled(device_type: str = "cuda") -> bool:  # noqa: ARG001 - torch's own signature
        return is_enabled("cpu")

    def set_autocast_enabled(device_type: Any, enabled: bool | None = None) -> None:  # noqa: FBT001
        named = enabled is not None
        if device_type != "cpu" and (enabled if named else device_type):
            set_dtype("cpu", dtype_of(device_type if named else "cuda"))
        enable("cpu", bool(enabled if named else device_type))

    def get_autocast_dtype(device_type: str) -> torch.dtype:
        return dtype_of("cpu" if is_enabled("cpu") else device_type)

    def set_autocast_dtype(device_type: str, dtype: torch.dtype) -> None:
        set_dtype(device_type, dtype)
        if is_enabled("cpu"):
            set_dtype("cpu", dtype)

    replaced: dict[str, Any] = {
        "is_autocast_enabled": is_autocast_enabled,
        "set_autocast_enabled": set_autocast_enabled,
        "get_autocast_dtype": get_autocast_dtype,
        "set_autocast_dtype": set_autocast_dtype,
        "get_autocast_gpu_dtype": lambda: get_autocast_dtype("cuda"),
        "set_autocast_gpu_dtype": lambda dtype: set_autocast_dtype("cuda", dtype),
    }
    before = is_enabled("cpu"), dtype_of("cpu"), dtype_of("cuda")
    try:
        with ExitStack() as stack:
            for name, function in replaced.items():
                stack.enter_context(replace_attribute(torch, name, function))
            yield
    finally:
        enable("cpu", before[0])
        set_dtype("cpu", before[1])
        set_dtype("cuda", before[2])


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
