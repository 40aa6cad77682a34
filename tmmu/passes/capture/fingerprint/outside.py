"""Which functions look at more than objects: files, the environment, clocks, chance, the interpreter's own tables.

Of Python's own modules the pure ones are listed, and all others look outside; of torch and numpy it is the other way
round. Compiled code of other libraries is never known to be pure.
"""

import os
from collections.abc import Callable, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from tmmu.passes.capture.fingerprint.homes import PYTHON, home_of_code, home_of_module

PURE: Final = frozenset({
    *("abc", "bisect", "builtins", "cmath", "codecs", "collections", "collections_abc", "contextlib", "copy"),
    *("copyreg", "dataclasses", "enum", "fractions", "functools", "graphlib", "heapq", "itertools", "json", "keyword"),
    *("math", "numbers", "operator", "pprint", "py_abc", "re", "reprlib", "sre", "sre_compile", "sre_parse"),
    *("statistics", "string", "struct", "textwrap", "types", "typing", "warnings", "weakref", "weakrefset", "future"),
})  # fmt: skip
"""Modules of Python whose functions depend on their arguments alone; a compiled half begins with ``_``."""
QUIET: Final = {
    "posixpath": ("join", "split", "splitext", "basename", "dirname", "normpath", "isabs", "commonprefix"),
    "ntpath": ("join", "split", "splitext", "basename", "dirname", "normpath", "isabs", "commonprefix"),
    "pathlib": ("PurePath.", "Path.__new__"),
    "inspect": ("isfunction", "isclass", "ismethod", "ismodule", "isbuiltin", "isroutine"),
    "logging": (
        *("Logger.debug", "Logger.info", "Logger.warning", "Logger.error", "Logger.exception", "Logger.critical"),
        *("Logger.log", "Logger.isEnabledFor", "Logger.getEffectiveLevel", "LoggerAdapter."),
        *("debug", "info", "warning", "error", "exception", "critical", "log"),
    ),
    "importlib._bootstrap": ("_handle_fromlist", "_find_and_load", "_gcd_import", "_lock_unlock_module", "_ModuleLock"),
}
"""Of the other modules, what returns nothing, or nothing that its arguments do not say; a class ends in a dot."""
_BUILTINS: Final = frozenset(
    {"open", "input", "id", "hash", "globals", "eval", "exec", "compile", "__import__", "breakpoint"}
)
"""Builtin functions that look outside, or run what no code object shows."""
_ANNOTATIONS: Final = ("get_type_hints", "get_annotations")
"""Functions that read annotations, which no fingerprint covers."""
_TORCH: Final = frozenset({
    *("get_num_threads", "get_num_interop_threads", "from_file", "initial_seed", "seed", "get_state", "__subclasses__"),
    *("get_device_properties", "get_device_capability", "get_device_name", "get_arch_list", "get_rng_state"),
    *("utilization", "temperature", "power_draw", "clock_rate", "mem_get_info", "synchronize"),
})  # fmt: skip
"""Functions of torch, Python or compiled, that say what no tensor does."""
_MODULES_OF_LIBRARIES: Final = (
    *(
        "torch.hub",
        "torch.serialization",
        "torch.random",
        "torch.cuda.memory",
        "torch.cuda.random",
        "torch.distributed",
    ),
    *(
        "torch.multiprocessing",
        "torch.utils.cpp_extension",
        "torch.utils.collect_env",
        "numpy.random",
        "numpy.lib.npyio",
    ),
    *("numpy.lib._npyio_impl", "numpy.core.memmap", "numpy._core.memmap", "numpy.ctypeslib"),
    *("numpy.core._ufunc_config", "numpy._core._ufunc_config", "numpy.core.arrayprint", "numpy._core.arrayprint"),
)
_FLAGS: Final = frozenset({"is_available", "is_initialized"})
"""Functions in such modules whose answer is one of the flags of a fingerprint."""
_NUMPY: Final = frozenset({"fromfile", "tofile", "memmap", "load", "loadtxt", "genfromtxt"})
_MADE_BY_PYTHON: Final = 1 << 9
"""The flag of a class that was made while the program ran, so that its methods show."""
ENVIRONMENT: Final = type(os.environ)
"""The class of the environment's variables."""
_CYTHON: Final = ("cython_function_or_method", "fused_cython_function")
"""Types of compiled functions that call no attention to themselves when they run."""


def outside(value: Any) -> str:
    """The name of a module, a class or a function that looks outside; empty for all else."""
    if type(value).__name__ in _CYTHON:
        return f"{value.__module__}.{value.__name__}"
    return next((ask(value) for kind, ask in _ASKED.items() if isinstance(value, kind)), "")


def _module_outside(module: ModuleType) -> str:
    name = module.__name__
    if home_of_module(module) == PYTHON:
        inside = is_pure(name) and name != "builtins"
    else:
        inside = not _is_under(name, _MODULES_OF_LIBRARIES)
    return "" if inside else f"the module {name}"


def _function_outside(function: FunctionType) -> str:
    code, module = function.__code__, str(function.__globals__.get("__name__"))
    return f"{module}.{code.co_qualname}" if code_outside(module, code.co_qualname, home_of_code(code)) else ""


def _class_outside(kind: type) -> str:
    """A compiled class of which nobody knows that its methods show when they are called, or are pure."""
    module = kind.__module__
    known = kind.__flags__ & _MADE_BY_PYTHON or module.partition(".")[0] == "torch" or is_pure(module)
    numpys = module.partition(".")[0] == "numpy" and not _is_under(module, _MODULES_OF_LIBRARIES)
    return "" if known or numpys else f"{module}.{kind.__qualname__}"


def code_outside(module: str, name: str, home: str | None) -> bool:
    """Whether the Python function of this name in a library's module looks outside."""
    if home == PYTHON:
        return name in _ANNOTATIONS or (not is_pure(module) and not is_quiet(module, name))
    if home in ("torch", "numpy"):
        inside = name in _FLAGS or not _is_under(module, _MODULES_OF_LIBRARIES)
        return not inside or (home == "torch" and name in _TORCH)
    return False


def compiled_outside(function: Any) -> str:
    """The name of a compiled function that is not known to depend on its arguments alone."""
    module, name = _origin(function), function.__name__
    top = module.partition(".")[0]
    if name == "__subclasses__":
        return f"{module}.{name}"
    if top == "builtins":
        return name if name in _BUILTINS else ""
    if top == "torch":
        pure = name not in _TORCH
    elif top == "numpy":
        pure = name not in _NUMPY and not _is_under(module, _MODULES_OF_LIBRARIES)
    else:
        pure = is_pure(module)
    return "" if pure else f"{module.removeprefix('_')}.{name}"


_ASKED: Final[Mapping[type, Callable[[Any], str]]] = {
    ModuleType: _module_outside,
    MethodType: lambda method: outside(method.__func__),
    FunctionType: _function_outside,
    BuiltinFunctionType: compiled_outside,
    type: _class_outside,
    ENVIRONMENT: lambda _: "os.environ",
}


def _origin(function: Any) -> str:
    """The module that a compiled function is from; of a method, where its class is from."""
    bound = function.__self__
    if isinstance(bound, ModuleType):
        return bound.__name__
    if bound is None or type(bound).__name__ == "PyCapsule" or type(bound).__module__ == "pybind11_builtins":
        return function.__module__ or ""
    kind = bound if isinstance(bound, type) else type(bound)
    return next((base.__module__ for base in kind.__mro__ if function.__name__ in vars(base)), kind.__module__)


def is_pure(module: str) -> bool:
    """Whether the module of Python's own is one of the pure ones."""
    return module.partition(".")[0].lstrip("_") in PURE


def is_quiet(module: str, name: str) -> bool:
    """Whether a function of another module of Python's own does nothing that a trace could notice."""
    known = QUIET.get(module, ())
    return name in known or any(one.endswith(".") and name.startswith(one) for one in known)


def _is_under(module: str, names: tuple[str, ...]) -> bool:
    return module in names or module.startswith(tuple(f"{name}." for name in names))
