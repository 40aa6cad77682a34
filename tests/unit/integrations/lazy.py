"""Modules that are imported when they are first asked for: each process of the tests collects every file."""

from importlib import import_module
from typing import Any


class Lazy:
    """A module by name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith(("_", "pytest")):  # what pytest looks for in all that a file names
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)
