"""How many threads torch has."""

from collections.abc import Iterator

import pytest
import torch

THREADS = (1, 2)


@pytest.fixture(params=THREADS)
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)
