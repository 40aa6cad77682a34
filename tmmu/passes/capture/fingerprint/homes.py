"""Whose code something is: an installed library's, Python's own, ours, or the user's.

Code of a library is told by the library's name and is not looked into; which state the library's files are in is for
whoever asks for the fingerprint to add. All other code is the user's and is read whole.
"""

import sys
import sysconfig
from functools import cache
from pathlib import PurePath
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from torch._ops import _OpNamespace, _Ops

PYTHON: Final = "python"
OURS: Final = "tmmu"
_SITES: Final = ("site-packages", "dist-packages")
_STANDARD: Final = tuple({PurePath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")})
_PACKAGE: Final = PurePath(__file__).parents[2]


@cache
def home_of_file(filename: str) -> str | None:
    """The name of the library that the file belongs to; ``None`` for the user's, and for code without a file."""
    if filename.startswith("<frozen "):
        return PYTHON
    path = PurePath(filename)
    site = next((at for at in range(len(path.parts) - 1, -1, -1) if path.parts[at] in _SITES), None)
    if site is not None and site + 1 < len(path.parts):
        return path.parts[site + 1].partition(".")[0]
    if path.is_relative_to(_PACKAGE):
        return OURS
    return PYTHON if any(path.is_relative_to(folder) for folder in _STANDARD) else None


def home_of_module(module: ModuleType | None) -> str | None:
    """Whose module it is."""
    if module is None:
        return None
    if isinstance(module, (_Ops, _OpNamespace)):
        return "torch"
    filename = vars(module).get("__file__")
    if isinstance(filename, str):
        return home_of_file(filename)
    name = module.__name__.partition(".")[0]
    if name in sys.builtin_module_names or name in sys.stdlib_module_names:
        return PYTHON
    parent = sys.modules.get(name)
    return home_of_module(parent) if parent is not None and parent is not module else None


def module_called(name: str | None) -> ModuleType | None:
    """The loaded module of this name."""
    module = sys.modules.get(name or "")
    return module if isinstance(module, ModuleType) else None


def home_of_code(code: CodeType) -> str | None:
    """Whose file the code stands in."""
    return home_of_file(code.co_filename)


def home_of_named(value: Any) -> str | None:
    """Whose a class or function is, if that module has it under its own name; ``None`` where it does not."""
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    found: Any = module
    for name in (getattr(value, "__qualname__", None) or "").split("."):
        found = vars(found).get(name) if isinstance(found, (type, ModuleType)) else None
    unwrapped = found.__func__ if isinstance(found, (staticmethod, classmethod)) else found
    return home_of_module(module) if unwrapped is value else None


def innermost(function: FunctionType) -> FunctionType:
    """The function that the decorators were put around, as far as they say."""
    for _ in range(16):
        inner = function.__dict__.get("__wrapped__")
        if not isinstance(inner, FunctionType):
            break
        function = inner
    return function
