"""Libraries as they are in this process: which of their names mean something else than their files say."""

import sys
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional, init

from tmmu.passes.fingerprint.homes import OURS, PYTHON, home_of_code, home_of_module, innermost
from tmmu.passes.fingerprint.walker import Walker

_USUAL: Final = frozenset({PYTHON, OURS, "torch", "numpy", "sympy", "typing_extensions"})
"""Whose functions may stand in any library: decorators and re-exports are made of them."""
_SURFACES: Final[tuple[Any, ...]] = (torch, functional, init, torch.Tensor, nn.Module)
"""Where every function is named, so that exchanging two of torch's own for each other shows as well."""
_EAGER: Final = (
    *("torch.nn", "torch.autograd", "torch.amp", "torch.functional", "torch._tensor", "torch.overrides"),
    *(
        "torch.special",
        "torch.linalg",
        "torch.fft",
        "torch.utils.checkpoint",
        "torch.utils._python_dispatch",
        "torch._ops",
    ),
    *("torch.library", "torch._library", "torch._refs", "torch._prims", "torch._prims_common", "torch._decomp"),
    *("torch._meta_registrations", "torch._subclasses"),
)
"""The packages of torch that run when a model runs on fake tensors; its compilers do not."""
_NAMED_TUPLE: Final = "namedtuple_"
"""How Python calls the module of a function that it writes for a named tuple."""
_PLAIN: Final = (bool, int, float, str, type(None), torch.dtype)


def patches(w: Walker) -> None:
    """All that was put into the libraries that the model uses, and what these keep beside the model's classes."""
    with w.sink.about("patches"):
        for surface in _SURFACES:
            w.emit(*_surface(surface))
        for home in sorted(w.libraries.keys() - {PYTHON}):
            for module in _loaded(home):
                for name, held in foreign(module, home):
                    w.emit("patch", module.__name__, name)
                    w.visit(held, f"{module.__name__}.{name}")
        _settings(w)


def _surface(surface: Any) -> Iterator[str]:
    """Each function of a namespace, and which it is."""
    for name, held in sorted(vars(surface).items()):
        if callable(held) and not isinstance(held, type):
            yield f"{name} {getattr(held, '__module__', '')} {getattr(held, '__qualname__', type(held).__name__)}"


def _loaded(home: str) -> Iterator[ModuleType]:
    """The library's modules that are loaded, by name."""
    for name in sorted(sys.modules):
        if home != "torch" or name == "torch" or name.startswith(_EAGER):
            module = sys.modules[name]
            if isinstance(module, ModuleType) and home_of_module(module) == home:
                yield module


def foreign(module: ModuleType, home: str) -> list[tuple[str, FunctionType]]:
    """(name, function) for what a module of library ``home`` holds, itself or in its classes and tables, of others."""
    found: list[tuple[str, FunctionType]] = []
    own, top = module.__name__, module.__name__.partition(".")[0]

    def look(name: str, held: Any) -> None:
        kind = type(held)
        if kind is FunctionType:
            if _is_foreign(held, home):
                found.append((name, held))
        elif kind is dict:
            for key, one in list(held.items()):
                if type(one) is FunctionType and _is_foreign(one, home):
                    found.append((f"{name}[{key!s:.80}]", one))
        elif kind is staticmethod or kind is classmethod:
            look(name, held.__func__)
        elif kind is property:
            look(name, held.fget)

    for name, held in list(vars(module).items()):
        if isinstance(held, type):
            if held.__module__ == own:
                _each(look, name, vars(held))
        elif type(held).__module__.partition(".")[0] == top:
            _each(look, name, getattr(held, "__dict__", {}))
        else:
            look(name, held)
    return found


def _each(look: Callable[[str, Any], None], name: str, held: Any) -> None:
    for inner, one in list(held.items()):
        look(f"{name}.{inner}", one)


def _is_foreign(function: FunctionType, home: str) -> bool:
    where = home_of_code(function.__code__)
    if where == home and "__wrapped__" not in function.__dict__:
        return False
    function = innermost(function)
    where = home_of_code(function.__code__)
    if where is None and function.__code__.co_filename.startswith("<"):
        made_in = function.__module__ or ""
        where = PYTHON if made_in.startswith(_NAMED_TUPLE) else home_of_module(sys.modules.get(made_in))
    return where != home and where not in _USUAL


def _settings(w: Walker) -> None:
    """Plain values in the library classes that the model is made of, and in the modules that these stand in."""
    modules: dict[str, None] = {}
    for kind in list(w.classes):
        for base in kind.__mro__:
            home = home_of_module(sys.modules.get(base.__module__))
            if home not in (None, PYTHON, OURS):
                modules[base.__module__] = None
                w.emit("settings", base.__module__, base.__qualname__)
                _plain(w, vars(base))
    for name in sorted(modules):
        w.emit("settings", name)
        _plain(w, vars(sys.modules[name]))


def _plain(w: Walker, held: Any) -> None:
    for name, value in sorted(held.items()):
        if type(value) in _PLAIN and not name.startswith("__"):
            w.emit(name)
            w.visit(value)
