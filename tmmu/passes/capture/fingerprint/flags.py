"""The switches of torch that decide which operators run, and what is turned on for all code."""

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import ModuleType
from typing import Any, Final

import torch
from torch.backends import ContextProp
from torch.nn.modules import module as modules

from tmmu.passes.capture.fingerprint.homes import home_of_named
from tmmu.passes.capture.fingerprint.walker import Walker

_DEVICES: Final = ("cpu", "cuda")

FLAGS: Final[Mapping[str, Callable[[], object]]] = {
    "default dtype": torch.get_default_dtype,
    "default device": torch.get_default_device,
    "grad": torch.is_grad_enabled,
    "inference mode": torch.is_inference_mode_enabled,
    "fill uninitialized": lambda: torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
    "fast attention path": torch.backends.mha.get_fastpath_enabled,
    "devices": lambda: [torch.cuda.is_available(), torch.cuda.device_count(), torch.backends.mps.is_available()],
    "distributed": lambda: torch.distributed.is_available() and torch.distributed.is_initialized(),
    "anomaly detection": torch.is_anomaly_enabled,
    "anomaly check": torch.is_anomaly_check_nan_enabled,
    "autocast cache": torch.is_autocast_cache_enabled,
    "swap on conversion": torch.__future__.get_swap_module_params_on_conversion,
    "overwrite on conversion": torch.__future__.get_overwrite_module_params_on_conversion,
}
"""What each is called, and how it is asked; beside torch's own registry of switches, and its backends."""
_ASKED: Final = ("_get_", "_is_")
"""How torch's compiled code calls what tells a switch."""
_NO_SWITCHES: Final = ("_get_caught_jit", "_get_DTensor", "_get_thread_name", "_get_tracing_state", "_get_all_dtypes")
"""What is called like them and says what ran before."""
_PRECISIONS: Final = (
    *(("generic", "all"), ("cuda", "matmul")),
    *((backend, what) for backend in ("cuda", "mkldnn") for what in ("all", "conv", "rnn")),
    ("mkldnn", "matmul"),
)
"""Backends and kinds of operators that have a precision of their own."""
_PLAIN: Final = (bool, int, float, str, type(None))

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
    for backend, what in _PRECISIONS:
        found[f"precision of {what} on {backend}"] = torch._C._get_fp32_precision_getter(backend, what)
    found |= {name: str(_told(getattr(torch._C, name))) for name in _compiled_switches()}
    for name in sorted(sys.modules):
        if name.startswith("torch.backends."):
            found |= dict(_switches(sys.modules[name], name, ()))
    return found


@cache
def _compiled_switches() -> tuple[str, ...]:
    """Functions of torch that take nothing and tell a plain value."""
    names = [name for name in dir(torch._C) if name.startswith(_ASKED) and not name.startswith(_NO_SWITCHES)]
    return tuple(name for name in names if _is_plain(getattr(torch._C, name)))


def _told(ask: Callable[[], object]) -> object:
    """What the function says; if it raises, which error: of two settings that contradict each other, say."""
    try:
        return ask()
    except Exception as error:  # noqa: BLE001 - it takes arguments, or is not built in
        return type(error)


def _is_plain(ask: Callable[[], object]) -> bool:
    told = _told(ask)
    return all(type(one) in _PLAIN for one in (told if isinstance(told, (list, tuple)) else (told,)))


def _switches(holder: Any, name: str, above: tuple[Any, ...]) -> Iterator[tuple[str, str]]:
    """The plain values of a module of torch's backends or of an object in one, and its properties, by name."""
    behind = vars(vars(holder).get("m", holder))  # a module that a class of properties stands before
    for key, held in sorted({**vars(type(holder)), **behind, **vars(holder)}.items()):
        if key.startswith("__"):
            continue
        if isinstance(held, ContextProp):
            yield f"{name}.{key}", str(held.getter())
        elif type(held) in _PLAIN:
            yield f"{name}.{key}", str(held)
        elif _is_of_backends(held) and not any(held is one for one in above):
            yield from _switches(held, f"{name}.{key}", (*above, holder))


def _is_of_backends(held: Any) -> bool:
    return type(held).__module__.startswith("torch.backends") and not isinstance(held, (type, ModuleType))


def everywhere(w: Walker) -> None:
    """What is turned on for all code: hooks of every module, hooks of what is saved, modes of the user's."""
    w.visit([hook for name in GLOBAL_HOOKS for hook in list(getattr(modules, name).values())], "global hooks")
    w.visit(torch._C._autograd._top_saved_tensors_default_hooks(True), "saved tensor hooks")  # noqa: FBT003
    functions = [torch._C._get_function_stack_at(at) for at in range(torch._C._len_torch_function_stack())]
    operators = [torch._C._get_dispatch_stack_at(at) for at in range(torch._C._len_torch_dispatch_stack())]
    for mode in (*functions, *operators):
        if home_of_named(type(mode)) is None:
            w.refuse(f"a mode of class {type(mode).__qualname__}, which is on for all code,")
        w.emit("mode", type(mode).__qualname__)
