"""Operators that raise where deterministic algorithms are demanded, as they do when the model runs on its device.

The operators and the cases are those of ``torch.use_deterministic_algorithms``'s own documentation, and ``kthvalue``,
which alerts in torch's source (``aten/src/ATen/native/cuda/Sorting.cpp``). A fake kernel knows the device that is
traced and not the target's, so it raises where it should not, or not where it should.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from tmmu.errors import CaptureFailed
from tmmu.ir.program import Switches
from tmmu.kernel_switches import is_deterministic
from tmmu.torch_private import OpOverload, schema_of

Arguments = Mapping[str, Any]
_MODE_MAX: Final = 2
"""``mode='max'`` of an embedding bag, as operators number it."""


def require_deterministic_kernel(  # noqa: PLR0913, PLR0917 - a call, and where it is made
    func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], switches: Switches, device: str, source: str
) -> None:
    """``CAPTURE_FAILED`` for a call that the target's kernel refuses under these switches."""
    if not switches or not is_deterministic(switches):
        return
    raises = _ANYWHERE.get(_name(func)) or (_ON_CUDA.get(_name(func)) if device == "cuda" else None)
    if raises is not None and raises(_arguments(func, args, kwargs)):
        raise CaptureFailed(
            f"{func} has no deterministic kernel on {device}, which torch.use_deterministic_algorithms demands"
            + (f": the gradient of {source}" if source else ""),
            fix="use another operator, or allow it: torch.use_deterministic_algorithms(True, warn_only=True)",
        )


def _name(func: OpOverload) -> str:
    """Without namespace, overload, and the mark of those that write in place."""
    return str(schema_of(func).name).removeprefix("aten::").removesuffix("_") if func.namespace == "aten" else ""


def _arguments(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    names = [argument.name for argument in schema_of(func).arguments]
    return dict(zip(names, args, strict=False)) | kwargs


def _always(_: Arguments) -> bool:
    return True


def _is_inexact(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _sums_inexact(arguments: Arguments) -> bool:
    dtype = arguments.get("dtype")
    exact = not (dtype.is_floating_point or dtype.is_complex) if dtype is not None else None
    return _is_inexact(arguments["self"]) if exact is None else not exact


_ANYWHERE: Final[Mapping[str, Callable[[Arguments], bool]]] = {
    "max_unpool2d": _always,
    "max_unpool3d": _always,
    "put": lambda arguments: not arguments.get("accumulate", False),
}
"""By operator, whether a call of it raises on any device."""
_ON_CUDA: Final[Mapping[str, Callable[[Arguments], bool]]] = {
    **dict.fromkeys(
        (
            *("avg_pool3d_backward", "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward"),
            *("adaptive_max_pool2d_backward", "fractional_max_pool2d_backward", "fractional_max_pool3d_backward"),
            *("upsample_linear1d_backward", "upsample_bilinear2d_backward", "upsample_trilinear3d_backward"),
            *("upsample_bicubic2d_backward", "_upsample_bilinear2d_aa_backward", "_upsample_bicubic2d_aa_backward"),
            *("reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward"),
            *("replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward"),
            *("grid_sampler_2d_backward", "grid_sampler_3d_backward", "_ctc_loss_backward", "kthvalue", "put"),
        ),
        _always,
    ),
    "median": lambda arguments: "dim" in arguments,
    "nanmedian": lambda arguments: "dim" in arguments,
    "mode": _always,
    "nll_loss2d_forward": lambda arguments: arguments.get("reduction", 1) != 0,
    "_embedding_bag_dense_backward": lambda arguments: arguments.get("mode") == _MODE_MAX,
    "histc": lambda arguments: _is_inexact(arguments["self"]),
    "bincount": lambda arguments: arguments.get("weights") is not None,
    "cumsum": _sums_inexact,
    "scatter_reduce": lambda arguments: arguments.get("reduce") == "prod",
}
"""The same, for those that raise on a GPU alone."""
