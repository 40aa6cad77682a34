"""Fixtures of tests that run models."""

from collections.abc import Iterator

import pytest
import torch

from tests import kernels
from tmmu.passes.capture.collection import collections_of_new_objects


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Compute on one thread: others would only compete with threads that copy."""
    with kernels.one_thread():
        yield


@pytest.fixture
def fresh_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No graph of another test is compiled or reported, and kernels are those of eager.

    To compile makes so many objects that Python looks for garbage in all that there is, in every second test.
    """
    torch._dynamo.reset()
    monkeypatch.setattr("tmmu.backend._GRAPHS", [])
    torch.manual_seed(0)
    with collections_of_new_objects(), kernels.plain_kernels():
        yield
    torch._dynamo.reset()
