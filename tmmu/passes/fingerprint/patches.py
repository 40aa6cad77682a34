"""Libraries as they are in this process: which of their names mean something else than their files say."""

import sys
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType
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
    *("torch.special", "torch.linalg", "torch.fft", "torch.utils.checkpoint", "torch.utils._python_dispatch"),
    *("torch._ops", "torch.library", "torch._library", "torch._refs", "torch._prims", "torch._prims_common"),
    *("torch._decomp", "torch._meta_registrations", "torch._subclasses"),
)
"""The packages of torch that run when a model runs on fake tensors; its compilers do not."""
_GUARD: Final = "torch._dynamo.mutation_guard"
"""Once anything was compiled in a process, torch's compiler stands before two methods of modules, and calls them."""
_NAMED_TUPLE: Final = "namedtuple_"
"""How Python calls the module of a function that it writes for a named tuple."""
_PLAIN: Final = (bool, int, float, str, type(None), torch.dtype)
_CODE: Final = (FunctionType, BuiltinFunctionType)


def patches(w: Walker) -> None:
    """All that was put into the libraries that the model uses, and what these keep beside the model's classes."""
    with w.sink.about("patches"):
        for surface in _SURFACES:
            w.emit(*_surface(surface))
        for module in _modules_of(w.classes):
            _neighbours(w, module)
        scan = Scan()
        for home in sorted(w.libraries.keys() - {PYTHON}):
            for module in _loaded(home):
                for name, held in scan.foreign(module):
                    w.emit("patch", module.__name__, name)
                    w.visit(held, f"{module.__name__}.{name}")


def _surface(surface: Any, home: str | None = "torch") -> Iterator[str]:
    """Each function of a namespace, and which it is; without those that other libraries have put there: one more is
    seen where code names it, and one in another's place leaves that name out.
    """
    for name, held in sorted(vars(surface).items()):
        if callable(held) and not isinstance(held, type):
            module = sys.modules.get(getattr(held, "__module__", None) or "")
            if home_of_module(module) not in (None, PYTHON, home):
                continue
            guarded = getattr(held, "__module__", "") == _GUARD
            yield f"{name} torch.nn.modules.module Module.{name}" if guarded else f"{name} {_identity(held)}"


def _identity(held: Any) -> str:
    return f"{getattr(held, '__module__', '')} {getattr(held, '__qualname__', type(held).__name__)}"


def _loaded(home: str) -> Iterator[ModuleType]:
    """The library's modules that are loaded, by name."""
    for name in sorted(sys.modules):
        if home != "torch" or name == "torch" or name.startswith(_EAGER):
            module = sys.modules[name]
            if isinstance(module, ModuleType) and home_of_module(module) == home:
                yield module


class Scan:
    """Looks for what is the user's in modules of libraries; remembers which classes are, while it lasts."""

    def __init__(self) -> None:
        self._of_library: dict[type, bool] = {}

    def foreign(self, module: ModuleType) -> list[tuple[str, Any]]:
        """(name, value) for the user's functions, classes and objects in a module, in its classes and its tables."""
        own, top = module.__name__, module.__name__.partition(".")[0]
        found: list[tuple[str, Any]] = []
        for name, held in list(vars(module).items()):
            if isinstance(held, type):
                if held.__module__ == own:
                    self._all(found, name, vars(held))
                elif not self._is_library_class(held):
                    found.append((name, held))
            elif type(held).__module__.partition(".")[0] == top:
                self._all(found, name, getattr(held, "__dict__", {}))
            else:
                self._look(found, name, held)
        return found

    def _all(self, found: list[tuple[str, Any]], name: str, held: Mapping[str, Any]) -> None:
        for inner, one in list(held.items()):
            self._look(found, f"{name}.{inner}", one)

    def _look(self, found: list[tuple[str, Any]], name: str, held: Any) -> None:
        kind = type(held)
        if kind is FunctionType:
            if _is_users(held):
                found.append((name, held))
        elif kind is dict:
            functions = [(key, one) for key, one in list(held.items()) if type(one) is FunctionType]
            found.extend((f"{name}[{key!s:.80}]", one) for key, one in functions if _is_users(one))
        elif kind is staticmethod or kind is classmethod:
            self._look(found, name, held.__func__)
        elif kind is property:
            self._look(found, name, held.fget)
        elif not self._is_library_class(kind):
            found.append((name, held))

    def _is_library_class(self, kind: type) -> bool:
        """Whether the class is of a module that is not the user's, or that nobody can name."""
        known = self._of_library.get(kind)
        if known is None:
            module = sys.modules.get(kind.__module__)
            nameless = module is None or (not hasattr(module, "__file__") and module.__name__ != "__main__")
            known = self._of_library[kind] = nameless or home_of_module(module) is not None
        return known


def _is_users(held: FunctionType) -> bool:
    """Whether the function is the user's, or decorates one of the user's."""
    if home_of_code(held.__code__) is not None and "__wrapped__" not in held.__dict__:
        return False
    inner = innermost(held)
    if inner.__code__.co_filename.startswith("<") and not inner.__code__.co_filename.startswith("<frozen "):
        made_in = inner.__module__ or ""
        return not made_in.startswith(_NAMED_TUPLE) and home_of_module(sys.modules.get(made_in)) is None
    return home_of_code(inner.__code__) is None


def _modules_of(classes: dict[type, None]) -> list[ModuleType]:
    """The library modules in which classes stand that the model is made of, by name."""
    names = {base.__module__ for kind in classes for base in kind.__mro__}
    found = [sys.modules.get(name) for name in sorted(names)]
    return [module for module in found if module is not None and home_of_module(module) not in (None, PYTHON, OURS)]


def _neighbours(w: Walker, module: ModuleType) -> None:
    """What stands beside such a class: which function or class each name is, and every plain value, also of classes."""
    w.emit("beside", module.__name__)
    for name, held in sorted(vars(module).items()):
        if isinstance(held, (type, *_CODE)):
            w.emit(name, _identity(held))
            home = home_of_module(sys.modules.get(getattr(held, "__module__", None) or ""))
            if home is not None and home not in _USUAL:
                w.libraries[home] = None
        if isinstance(held, type) and held.__module__ == module.__name__:
            _plain(w, vars(held))
            w.emit(*_surface(held, home_of_module(module)))
    _plain(w, vars(module))


def _plain(w: Walker, held: Any) -> None:
    for name, value in sorted(held.items()):
        if type(value) in _PLAIN and not name.startswith("__"):
            w.emit(name)
            w.visit(value)
