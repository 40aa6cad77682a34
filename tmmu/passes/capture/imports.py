"""What is imported while a model is loaded: from where, and what of it must not outlive the load."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from torch import nn

from tmmu.torch_private import FakeTensor


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
