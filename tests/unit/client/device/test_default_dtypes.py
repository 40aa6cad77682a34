"""What a call makes by default is named: the server has a default of its own, and other bits would come of it."""

import pytest
import torch

from tests.unit.client.device.conftest import Remote

FACTORIES = {
    "ones": lambda d: torch.ones(2, device=d),
    "arange": lambda d: torch.arange(3.0, device=d),
    "arange of whole numbers": lambda d: torch.arange(3, device=d),
    "linspace": lambda d: torch.linspace(0, 1, 3, device=d),
    "full": lambda d: torch.full((2,), 1.5, device=d),
    "eye": lambda d: torch.eye(2, device=d),
    "rand": lambda d: torch.rand(2, device=d),
    "a dtype of its own": lambda d: torch.ones(2, dtype=torch.float32, device=d),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", FACTORIES)
def test_what_is_made_under_another_default_dtype_has_it_there(remote: Remote, name: str, dtype: torch.dtype) -> None:
    results = []
    for device in ("cpu", "remote"):
        torch.manual_seed(0)
        torch.set_default_dtype(dtype)
        try:
            results.append(FACTORIES[name](device))
        finally:
            torch.set_default_dtype(torch.float32)
    expected, result = results
    assert result.dtype is expected.dtype
    assert torch.equal(result.cpu(), expected)
