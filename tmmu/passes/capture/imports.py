"""What is imported while a model is loaded: from where, and what of it must not outlive the load."""

import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from torch import nn

from tmmu.torch_private import DisableTorchFunction, FakeTensor, disable_current_modes


@contextmanager
def importable_from(folder: str) -> Iterator[None]:
    """Block in which the model's code may import what lies in the folder, also while it runs."""
    path = list(sys.path)
    sys.path[:0] = [folder] if folder else []
    try:
        yield
    finally:
        sys.path[:] = path


@contextmanager
def ordinary_imports() -> Iterator[None]:
    """Block in which an installed package is imported as without a trace, also while a model runs.

    What it makes then are real tensors, and what it registers with torch or with others is registered once and stays.
    """
    finder = _InstalledFinder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _InstalledFinder(MetaPathFinder):
    """Leaves the finding to the others, and wraps the loader of what lies in a folder of installed packages."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module") and _is_installed(fullname, spec.origin):
                    spec.loader = _OrdinaryLoader(cast("Loader", spec.loader))
                return spec
        return None


@contextmanager
def outside_modes() -> Iterator[None]:
    """Block outside all modes of torch: what it makes are real tensors."""
    with disable_current_modes(), DisableTorchFunction():
        yield


class _OrdinaryLoader(Loader):
    """A loader that runs a module outside all modes of torch. The module itself names the loader behind it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        with outside_modes():
            self._loader.exec_module(module)


def _is_installed(name: str, origin: str | None) -> bool:
    """Whether the module lies in a package that was installed. Torch is the exception: it loads its modes lazily."""
    if origin is None or name.partition(".")[0] == "torch":
        return False
    return any(Path(origin).is_relative_to(folder) for folder in installed_folders())


@cache
def installed_folders() -> tuple[str, ...]:
    """Where this interpreter keeps installed packages."""
    return tuple(dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib")))


@contextmanager
def forget_fake_imports() -> Iterator[None]:
    """Block after which a package that it imported and that holds fake tensors is no longer imported.

    A module that makes a tensor while it is imported made a fake one; a later run on real tensors imports it anew.
    """
    before = frozenset(sys.modules)
    try:
        yield
    finally:
        imported = {name: module for name, module in sys.modules.items() if name not in before}
        packages = {name.partition(".")[0] for name, module in imported.items() if _holds_fakes(module)}
        for name in imported:
            if name.partition(".")[0] in packages:
                del sys.modules[name]


def _holds_fakes(module: ModuleType) -> bool:
    """Whether a global of the module, or an item of one, is a fake tensor or a model of them."""
    return any(map(_is_fake, list(vars(module).values())))


def _is_fake(value: Any, *, nested: bool = True) -> bool:
    if isinstance(value, nn.Module):
        return any(isinstance(tensor, FakeTensor) for tensor in (*value.parameters(), *value.buffers()))
    if nested and type(value) in (list, tuple, dict):
        items = value.values() if isinstance(value, dict) else value
        return any(_is_fake(item, nested=False) for item in list(items))
    return isinstance(value, FakeTensor)
