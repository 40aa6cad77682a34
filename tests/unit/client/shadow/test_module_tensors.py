"""A module's tensors as bytes, in the layout that they have on the server, and what tells that they changed."""

import pytest
import torch
from torch import nn

from tmmu.client.shadow.module_tensors import ModuleTensors, TensorImage


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4),
        torch.randn(3, 4).t(),
        torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.randn(6, 8)[::2, 1:5],
        torch.randn(3, 1).expand(3, 5),
        torch.randn(4, dtype=torch.complex64).conj(),
        torch.randn(5).to(torch.bfloat16),
        torch.arange(7) % 2 == 0,
        torch.tensor(2.5),
        torch.empty(0, 3),
    ],
)
def test_image_has_the_elements_and_spans_its_bytes(tensor: torch.Tensor) -> None:
    image = TensorImage(tensor)
    assert len(image.payload) == tensor.numel() * tensor.element_size()
    flat = torch.frombuffer(bytearray(image.payload), dtype=image.dtype) if image.payload else tensor.reshape(-1)
    assert torch.equal(flat.as_strided(image.shape, image.stride), tensor)


def test_a_dense_tensor_is_not_copied() -> None:
    tensor = torch.zeros(4)
    image = TensorImage(tensor)
    tensor[0] = 1
    assert bytes(image.payload[:4]) == b"\x00\x00\x80\x3f"


def test_changes_of_any_kind_are_told_by_name() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    states = ModuleTensors(module)
    assert states.changed(module) == []
    with torch.no_grad():
        module[0].bias[0:1].add_(1)  # through a view
    module[1].running_mean = torch.ones(2)
    module[0].weight.data = torch.zeros(2, 2)
    module[1].register_buffer("new", torch.ones(1))
    del module[1].running_var
    assert states.changed(module) == ["1.running_var", "0.weight", "0.bias", "1.running_mean", "1.new"]


def test_a_write_through_a_tied_name_changes_both() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].weight = module[0].weight
    states = ModuleTensors(module)
    with torch.no_grad():
        module[1].weight.zero_()
    assert states.changed(module) == ["0.weight", "1.weight"]
