"""Libraries that ask whether they are traced and then take a path that eager never takes: they get eager's answer."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

_FAKE_TESTS: Final = (("transformers.utils.import_utils", "is_fake_tensor"),)
"""Functions of one tensor that say whether it is fake; the recorder answers what values they then ask for."""


def _no(_: Any) -> bool:
    return False


@contextmanager
def real_looking_fakes() -> Iterator[None]:
    """While inside, the libraries above treat fake tensors as real ones."""
    __import__("importlib").invalidate_caches()
    replaced = [
        (module, name, getattr(module, name))
        for path, name in _FAKE_TESTS
        if (module := sys.modules.get(path)) is not None and hasattr(module, name)
    ]
    for module, name, _ in replaced:
        setattr(module, name, _no)
    try:
        yield
    finally:
        for module, name, original in replaced:
            setattr(module, name, original)
