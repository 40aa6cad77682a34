"""Libraries that ask whether they are traced and then take a path that eager never takes.

They ask of one tensor, because they are about to look at its value. Where the recording knows the value, the honest
answer is no: the library takes eager's path and gets the number. Where it does not, the answer is yes, and the
library keeps the data-dependent choice inside the graph.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tmmu.passes.capture.record.graph_builder import value_is_known
from tmmu.torch_private import FakeTensor

_SKIP_CHECKS: Final = "TRANSFORMERS_DISABLE_TORCH_CHECK"
"""transformers' own switch for assertions on tensor data, which hold for valid inputs and cannot be looked at here."""

_FAKE_TESTS: Final = (("transformers.utils.import_utils", "is_fake_tensor"),)
"""Functions of one tensor that say whether it is fake."""


def _hides_its_value(tensor: Any) -> bool:
    return isinstance(tensor, FakeTensor) and not value_is_known(tensor)


@contextmanager
def real_looking_fakes() -> Iterator[None]:
    """Block in which the libraries above take fake tensors of known value for real ones."""
    replaced = []
    for path, name in _FAKE_TESTS:
        module = sys.modules.get(path)
        if module is not None and hasattr(module, name):
            replaced.append((module, name, getattr(module, name)))
            setattr(module, name, _hides_its_value)
    checks = os.environ.get(_SKIP_CHECKS)
    os.environ[_SKIP_CHECKS] = "1"
    try:
        yield
    finally:
        if checks is None:
            del os.environ[_SKIP_CHECKS]
        else:
            os.environ[_SKIP_CHECKS] = checks
        for module, name, original in replaced:
            setattr(module, name, original)
