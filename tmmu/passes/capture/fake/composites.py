"""Composite operators that are taken apart otherwise in a trace: as CPU builds do for CUDA, or for fake tensors alone.

The trace runs on CPU tensors. An operator without a kernel of its own is taken apart by a C++ function that looks at
the device, so on the ``cuda`` target the few that differ are given the rule that a GPU would follow. Python's
decompositions, which torch keeps for its compiler, are hidden meanwhile: eager does not use them.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final

import torch

from tmmu import torch_private
from tmmu.passes.capture.fake.attention import cuda_attention
from tmmu.torch_private import (
    DispatchKey,
    OpOverload,
    OpOverloadPacket,
    call_composite,
    destroy_library,
    enable_python_dispatcher,
    forget_kernels,
    is_mkldnn_enabled,
    set_mkldnn_enabled,
)

_aten: Final = torch.ops.aten
_HALF: Final = (torch.float16, torch.bfloat16)
_COMPOSITE: Final = DispatchKey.CompositeImplicitAutograd
_KEYS: Final = (_COMPOSITE, DispatchKey.Autograd)
"""Where torch's compiler looks for rules in Python: in place of a composite, and in place of autograd's own formula."""

_UNDECLARED: Final = frozenset({_aten.native_batch_norm.default, _aten.cudnn_batch_norm.default})
"""Operators whose schemas do not say that they write running statistics: autograd's rule names one that does."""


def _dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:  # noqa: FBT001 - torch's own signature
    """One fused kernel that keeps a boolean mask."""
    if not train or p == 0 or x.numel() == 0:
        return x
    if p == 1:
        return x.mul(torch.zeros((), dtype=x.dtype))
    return _aten.native_dropout.default(x, p, train)[0]  # type: ignore[no-any-return]


def _softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Half precision in, single out, without a copy between."""
    return _normalize(_aten._softmax.default, x, dim, dtype)


def _log_softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    return _normalize(_aten._log_softmax.default, x, dim, dtype)


def _normalize(kernel: Any, x: torch.Tensor, dim: int, dtype: torch.dtype | None) -> torch.Tensor:
    if dtype is None and torch.is_autocast_enabled("cpu") and x.dtype in _HALF:
        dtype = torch.float32
    fused = x.dtype in _HALF and dtype is torch.float32
    if dtype is not None and not fused:
        x = x.to(dtype)
    return kernel(x, dim, fused)  # type: ignore[no-any-return]


def _rms_norm(
    x: torch.Tensor, shape: list[int], weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    """One fused kernel that keeps a reciprocal per row."""
    return _aten._fused_rms_norm.default(x, shape, weight, eps)[0]  # type: ignore[no-any-return]


def _deterministic_interpolation(operator: OpOverload) -> Callable[..., Any]:
    """What ``functional.interpolate`` takes on a GPU, whose kernel has no deterministic gradient."""

    def run(x: torch.Tensor, *arguments: Any) -> Any:
        if torch.are_deterministic_algorithms_enabled():
            return torch_private.interpolate_deterministically(x, *arguments)
        return call_composite(operator, x, *arguments)

    return run


def _pad(x: torch.Tensor, pad: list[int], mode: str = "constant", value: float | None = None) -> Any:
    if mode == "replicate" and torch.are_deterministic_algorithms_enabled():
        return torch_private.pad_deterministically(x, pad)
    return call_composite(_aten.pad.default, x, pad, mode, value)


CUDA_RULES: Final[Mapping[OpOverload, Callable[..., Any]]] = {
    _aten.scaled_dot_product_attention.default: cuda_attention,
    _aten.dropout.default: _dropout,
    _aten.softmax.int: _softmax,
    _aten.log_softmax.int: _log_softmax,
    _aten.rms_norm.default: _rms_norm,
    _aten.pad.default: _pad,
    _aten.upsample_bilinear2d.vec: _deterministic_interpolation(_aten.upsample_bilinear2d.vec),
    _aten.upsample_trilinear3d.vec: _deterministic_interpolation(_aten.upsample_trilinear3d.vec),
}


def _singular_values(matrix: torch.Tensor, *, driver: str | None = None) -> torch.Tensor:
    return _aten._linalg_svd.default(matrix, compute_uv=_is_trained(matrix), driver=driver)[1]  # type: ignore[no-any-return]


def _symmetric_eigenvalues(matrix: torch.Tensor, uplo: str = "L") -> torch.Tensor:
    return _aten._linalg_eigh.default(matrix, uplo, _is_trained(matrix))[0]  # type: ignore[no-any-return]


def _eigenvalues(matrix: torch.Tensor) -> torch.Tensor:
    if _is_trained(matrix):
        return _aten.linalg_eig.default(matrix)[0]  # type: ignore[no-any-return]
    return _aten._linalg_eigvals.default(matrix)  # type: ignore[no-any-return]


def _split_at(x: torch.Tensor, places: torch.Tensor, dim: int = 0) -> list[torch.Tensor]:
    """Eager reads the places from memory, which a fake tensor has not; its numbers may be known all the same."""
    numbers = [place.item() for place in places] if places.dim() else places.item()
    return list(x.tensor_split(numbers, dim))  # type: ignore[arg-type]


def _long_short_term_memory(x: torch.Tensor, *arguments: Any) -> Any:
    """Layers of single precision as torch takes them: of others, whether oneDNN has them depends on the processor."""
    enabled = is_mkldnn_enabled()
    set_mkldnn_enabled(enabled and x.dtype is torch.float32)
    try:
        return call_composite(_aten.lstm.input, x, *arguments)
    finally:
        set_mkldnn_enabled(enabled)


def _one_hot(device: str) -> Callable[..., torch.Tensor]:
    """Zeros and a scatter, where fake tensors are compared with a range. A CPU looks at the values first."""

    def run(x: torch.Tensor, classes: int = -1) -> torch.Tensor:
        if classes < 1 or x.numel() == 0:
            return call_composite(_aten.one_hot.default, x, classes)  # type: ignore[no-any-return]
        if device == "cpu":
            x.aminmax()
        zeros = torch.zeros((*x.shape, classes), dtype=x.dtype)
        return zeros.scatter_(-1, x.unsqueeze(-1), 1)

    return run


def _is_trained(tensor: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and tensor.requires_grad


_EAGER_RULES: Final[Mapping[str, Callable[..., Any]]] = {
    "linalg_svdvals": _singular_values,
    "linalg_eigvalsh": _symmetric_eigenvalues,
    "linalg_eigvals": _eigenvalues,
    "tensor_split.tensor_indices_or_sections": _split_at,
    "lstm.input": _long_short_term_memory,
}
"""Composites that do otherwise on a fake tensor, or on another processor.

Those of linear algebra compute vectors, by another algorithm; eager does so only where a gradient needs them.
"""


@contextmanager
def composites_for(device: str) -> Iterator[None]:
    """Block in which composite operators are taken apart as on ``device``."""
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    try:
        for name, rule in _EAGER_RULES.items():
            library.impl(name, rule, "AutogradCPU")  # type: ignore[no-untyped-call]
        library.impl("one_hot", _one_hot(device), "AutogradCPU")  # type: ignore[no-untyped-call]
        if device != "cuda":
            yield
            return
        with eager_composites(CUDA_RULES), enable_python_dispatcher():
            yield
    finally:
        destroy_library(library)


@contextmanager
def eager_composites(rules: Mapping[OpOverload, Callable[..., Any]] = MappingProxyType({})) -> Iterator[None]:
    """Block in which no operator is taken apart in Python, but for those that ``rules`` stand in for."""
    hidden = _with_python_kernels() | dict.fromkeys(rules)
    saved = {op: dict(op.py_kernels) for op in hidden}
    for op in hidden:
        for key in _KEYS[:1] if op in _UNDECLARED else _KEYS:
            op.py_kernels.pop(key, None)
    for op, rule in rules.items():
        op.py_kernels[_COMPOSITE] = rule
    forget_kernels(saved)
    try:
        yield
    finally:
        for op, kernels in saved.items():
            op.py_kernels.clear()
            op.py_kernels.update(kernels)
        forget_kernels(saved)


def _with_python_kernels() -> dict[OpOverload, None]:
    """Operators that torch's compiler would take apart in Python."""
    packets = [packet for packet in list(vars(_aten).values()) if isinstance(packet, OpOverloadPacket)]
    overloads = [op for packet in packets for op in list(vars(packet).values()) if isinstance(op, OpOverload)]
    return {op: None for op in overloads if any(key in op.py_kernels for key in _KEYS)}
