"""Libraries as they are in this process: which of their names mean something else than their files say."""

import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional, init

from tmmu.passes.capture.fingerprint.homes import OURS, PYTHON, home_of_module
from tmmu.passes.capture.fingerprint.scan import CODE, Scan, described, identity, spelled
from tmmu.passes.capture.fingerprint.walker import DRAWN, Walker

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
            yield f"{name} torch.nn.modules.module Module.{name} None None" if guarded else f"{name} {described(held)}"


def _loaded(home: str) -> Iterator[ModuleType]:
    """The library's modules that are loaded, by name."""
    for name in sorted(sys.modules):
        if home != "torch" or name == "torch" or name.startswith(_EAGER):
            module = sys.modules[name]
            if isinstance(module, ModuleType) and home_of_module(module) == home:
                yield module


def _modules_of(classes: dict[type, None]) -> list[ModuleType]:
    """The library modules in which classes stand that the model is made of, by name."""
    names = {base.__module__ for kind in classes for base in kind.__mro__}
    found = [sys.modules.get(name) for name in sorted(names)]
    return [module for module in found if module is not None and home_of_module(module) not in (None, PYTHON, OURS)]


def _neighbours(w: Walker, module: ModuleType) -> None:
    """What stands beside such a class: which function or class each name is, and every plain value, also of classes."""
    w.emit("beside", module.__name__)
    for name, held in sorted(vars(module).items()):
        if isinstance(held, (type, *CODE)):
            w.emit(name, identity(held) if isinstance(held, type) else described(held))
            home = home_of_module(sys.modules.get(getattr(held, "__module__", None) or ""))
            if home is not None and home not in _USUAL:
                w.libraries[home] = None
        if isinstance(held, type) and held.__module__ == module.__name__:
            _plain(w, vars(held), tables=True)
            w.emit(*_surface(held, home_of_module(module)))
    _plain(w, vars(module), tables=home_of_module(module) not in _USUAL)


def _plain(w: Walker, held: Mapping[str, Any], *, tables: bool) -> None:
    """Values that are plain, or made of plain ones; with ``tables`` also such as may change."""
    for name, value in sorted(held.items()):
        changing = isinstance(value, (list, dict, set)) and not tables
        said = "" if name.startswith("__") or name in DRAWN or changing else spelled(value)
        if said:
            w.emit(name, said)
