"""The switches of torch that decide which operators run."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch.nn.modules import module as modules

_DEVICES: Final = ("cpu", "cuda")

FLAGS: Final[Mapping[str, Callable[[], object]]] = {
    "default dtype": torch.get_default_dtype,
    "default device": torch.get_default_device,
    "grad": torch.is_grad_enabled,
    "inference mode": torch.is_inference_mode_enabled,
    "deterministic": torch.are_deterministic_algorithms_enabled,
    "deterministic, warn only": torch.is_deterministic_algorithms_warn_only_enabled,
    "fill uninitialized": lambda: torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
    "matmul precision": torch.get_float32_matmul_precision,
    "flash attention": torch.backends.cuda.flash_sdp_enabled,
    "efficient attention": torch.backends.cuda.mem_efficient_sdp_enabled,
    "cudnn attention": torch.backends.cuda.cudnn_sdp_enabled,
    "math attention": torch.backends.cuda.math_sdp_enabled,
    "half reductions in math attention": torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed,
    "attention priority": torch._C._get_sdp_priority_order,
    "fast attention path": torch.backends.mha.get_fastpath_enabled,
    "devices": lambda: [torch.cuda.is_available(), torch.cuda.device_count(), torch.backends.mps.is_available()],
    "distributed": lambda: torch.distributed.is_available() and torch.distributed.is_initialized(),
    "cudnn": lambda: torch.backends.cudnn.enabled,
    "cudnn, deterministic": lambda: torch.backends.cudnn.deterministic,
    "cudnn, benchmark": lambda: torch.backends.cudnn.benchmark,
    "mkldnn": lambda: torch.backends.mkldnn.enabled,
    "anomaly detection": torch.is_anomaly_enabled,
    "autocast cache": torch.is_autocast_cache_enabled,
    "swap on conversion": torch.__future__.get_swap_module_params_on_conversion,
    "overwrite on conversion": torch.__future__.get_overwrite_module_params_on_conversion,
}
"""What each is called, and how it is asked."""

GLOBAL_HOOKS: Final = (
    *("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks"),
    *("_global_module_registration_hooks", "_global_buffer_registration_hooks", "_global_parameter_registration_hooks"),
)
"""Maps in torch's module of modules: hooks that run in every module."""


def flag_values() -> dict[str, str]:
    """Every switch by name, as text."""
    found = {name: str(ask()) for name, ask in FLAGS.items()}
    for device in _DEVICES:
        found[f"autocast on {device}"] = str(torch.is_autocast_enabled(device))
        found[f"autocast type on {device}"] = str(torch.get_autocast_dtype(device))
    found["saved tensor hooks"] = str(torch._C._autograd._top_saved_tensors_default_hooks(True) is not None)  # noqa: FBT003
    return found


def global_hooks() -> list[Any]:
    """The hooks that run in every module, in their order."""
    return [hook for name in GLOBAL_HOOKS for hook in list(getattr(modules, name).values())]
