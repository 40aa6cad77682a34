"""A deterministic memory-planning compiler for PyTorch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tmmu.runtime.execute.bind import bind as bind

__all__ = ["bind"]


def __getattr__(name: str) -> Any:
    """``bind`` imports torch when it is asked for, and not before."""
    if name != "bind":
        raise AttributeError(f"module 'tmmu' has no attribute {name!r}")
    return import_module("tmmu.runtime.execute.bind").bind
