"""Runs under a dispatch mode leave torch as it was."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _dynamo_of_its_own() -> Iterator[None]:
    """Under a dispatch mode Dynamo compiles nothing, and would leave ``Sequential.forward`` alone from then on."""
    yield
    torch.compiler.reset()
