"""Uses of a device that are legal, and rarer: as on the cpu each."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.unit.client.device.conftest import Remote

Index = Callable[[torch.device], Any]


def rows(device: Any) -> torch.Tensor:
    return torch.arange(12.0, device=device).view(3, 4)


def test_a_deep_copy_aliases_what_its_original_did(remote: Remote) -> None:
    def run(device: str) -> list[Any]:
        whole = rows(device)
        copies = copy.deepcopy([whole, whole[1:, ::2], whole.t(), whole.expand(2, 3, 4)])
        copies[1].add_(100)
        return [(tensor.stride(), tensor.storage_offset(), tensor.tolist()) for tensor in (*copies, whole)]

    assert run("remote") == run("cpu")


def test_a_deep_copy_costs_nothing_until_it_is_written(remote: Remote) -> None:
    whole = rows("remote")
    whole.sum().item()
    before = remote.bytes
    other = copy.deepcopy(whole)
    assert other.sum().item() == 66
    assert remote.bytes == before
    other.zero_()
    assert whole.sum().item() == 66


def test_a_deep_copy_has_the_gradient(remote: Remote) -> None:
    parameter = torch.nn.Parameter(rows("remote"))
    parameter.grad = torch.ones(3, 4, device="remote")
    other = copy.deepcopy(parameter)
    other.grad.mul_(2)  # type: ignore[union-attr]
    assert (other.grad.sum().item(), parameter.grad.sum().item()) == (24, 12)  # type: ignore[union-attr]


def test_a_list_of_numbers_on_the_device_is_a_tensor(remote: Remote) -> None:
    numbers = [torch.tensor(1.5, device="remote"), torch.ones(2, device="remote").sum()]
    assert torch.equal(torch.tensor([*numbers, 3.0]), torch.tensor([1.5, 2.0, 3.0]))


@pytest.mark.parametrize(
    "indices",
    [
        lambda device: (slice(None), torch.tensor([True, False, True, True], device=device)),
        lambda device: (torch.tensor([True, False, True], device=device), torch.tensor([3, 1], device=device)),
        lambda device: (torch.tensor([[True] * 4] * 3, device=device), None),
        lambda device: (torch.tensor([0, 2], device=device), torch.tensor([False, True, False, True], device=device)),
        lambda device: (slice(None), torch.zeros(4, dtype=torch.bool, device=device)),
    ],
)
def test_a_mask_beside_other_indices(remote: Remote, indices: Index) -> None:
    here, there = rows("cpu")[indices(torch.device("cpu"))], rows("remote")[indices(torch.device("remote"))]
    assert (there.dtype, there.shape, there.tolist()) == (here.dtype, here.shape, here.tolist())


@pytest.mark.parametrize("size", [2, 5])
def test_a_mask_of_another_size_is_refused(remote: Remote, size: int) -> None:
    with pytest.raises(IndexError, match="shape of the mask"):
        rows("remote")[:, torch.ones(size, dtype=torch.bool, device="remote")]
