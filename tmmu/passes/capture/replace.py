"""Attributes of torch that stand for something else while a model is traced."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any, Final

TRACE_LOCK: Final = RLock()
"""Held while anything of the process stands for something else: a second thread would put back what it found then."""


@contextmanager
def replace_attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Block in which ``owner.name`` is ``value``; afterwards it is what it was."""
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)
