"""What is imported while a model is loaded: from where, and what of it must not outlive the load."""

import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from torch import nn

from tmmu.torch_private import PIPELINE_CHUNKS, DisableTorchFunction, FakeTensor, disable_current_modes


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
        spec = _spec_of_others(self, fullname, path, target)
        if spec is not None and hasattr(spec.loader, "exec_module") and _is_installed(fullname, spec.origin):
            spec.loader = _OrdinaryLoader(cast("Loader", spec.loader))
        return spec


def _spec_of_others(
    finder: MetaPathFinder, fullname: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    """What the finders behind this one find."""
    others = sys.meta_path[sys.meta_path.index(finder) + 1 :]
    specs = (other.find_spec(fullname, path, target) for other in others if hasattr(other, "find_spec"))
    return next((spec for spec in specs if spec is not None), None)


@contextmanager
def outside_modes() -> Iterator[None]:
    """Block outside all modes of torch: what it makes are real tensors."""
    with disable_current_modes(), DisableTorchFunction():
        yield


class _LoaderBehind(Loader):
    """A loader that runs a module by another one, which the module itself names."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)


class _OrdinaryLoader(_LoaderBehind):
    """Runs a module outside all modes of torch."""

    def exec_module(self, module: ModuleType) -> None:
        with outside_modes():
            super().exec_module(module)


@contextmanager
def from_import_on(name: str, block: Callable[[ModuleType], AbstractContextManager[None]]) -> Iterator[None]:
    """Block with that of the module of this name, which begins when somebody imports it, or here where it is imported.

    Nothing is imported for it.
    """
    with ExitStack() as stack:
        if name in sys.modules:
            stack.enter_context(block(sys.modules[name]))
            yield
            return
        finder = _AwaitedFinder(name, lambda module: stack.enter_context(block(module)))
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)


class _AwaitedFinder(MetaPathFinder):
    """Leaves the finding to the others, and does something with one module when it has been imported."""

    def __init__(self, name: str, action: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        spec = _spec_of_others(self, fullname, path, target)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _AwaitedLoader(cast("Loader", spec.loader), self._action)
        return spec


class _AwaitedLoader(_LoaderBehind):
    """Does something with a module that it has run."""

    def __init__(self, loader: Loader, action: Callable[[ModuleType], None]) -> None:
        super().__init__(loader)
        self._action = action

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        self._action(module)


def _is_installed(name: str, origin: str | None) -> bool:
    """Whether the module lies in a package that was installed. Torch is the exception: it loads its modes lazily.

    Of torch it is the one module that makes a tensor, which would be a fake one for good.
    """
    if origin is None or (name.partition(".")[0] == "torch" and name != PIPELINE_CHUNKS):
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
