"""Tensors on the ring keep shape, strides and sharing; tensors moved elsewhere come back with their latest values."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.runtime.streamed import ring_by_hand
from tmmu.errors import InvalidConfig
from tmmu.runtime.memory.slab import Slab
from tmmu.runtime.ring import module_tensors as windows
from tmmu.runtime.ring.module_tensors import extent_bytes, named_tensors, place_tensors, streamed_buffers

CPU = torch.device("cpu")


class Pair(nn.Module):
    """Two parameters on one storage."""

    def __init__(self, first: torch.Tensor, second: torch.Tensor) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(first), nn.Parameter(second)


def test_views_of_one_storage_keep_their_offsets() -> None:
    whole = torch.arange(12.0).view(3, 4)
    module = Pair(whole, whole[1:, 1:3])
    ring, graph = ring_by_hand(module, ["first"], slots=1)
    slab = Slab(ring.bytes, 64, CPU)
    slab.bytes(0, 48).view(torch.float32).copy_(torch.arange(12.0) * 2)
    tensors = named_tensors(module)
    with place_tensors(module, tensors, streamed_buffers(ring, graph, tensors), slab, CPU):
        assert module.first.equal(torch.arange(12.0).view(3, 4) * 2)
        assert module.second.tolist() == [[10, 12], [18, 20]]
        assert module.second.stride() == (4, 1)
    assert module.first.equal(whole)
    assert module.second.data_ptr() == whole[1:, 1:].data_ptr()


def test_tensor_that_reaches_beyond_the_buffer_is_refused() -> None:
    whole = torch.arange(12.0)
    module = Pair(whole[:4], whole[2:8])
    ring, graph = ring_by_hand(module, ["first"], slots=1)
    graph = replace(graph, buffers=replace(graph.buffers, bytes=(16,)))
    tensors = named_tensors(module)
    with (
        pytest.raises(InvalidConfig, match="second shares memory with first and reaches beyond it"),
        place_tensors(module, tensors, streamed_buffers(ring, graph, tensors), Slab(ring.bytes, 64, CPU), CPU),
    ):
        pass


@pytest.mark.parametrize(
    ("make", "bytes_"),
    [(lambda: torch.zeros(3, 4), 48), (lambda: torch.zeros(8)[::2], 28), (lambda: torch.zeros(0, 3), 0),
     (lambda: torch.zeros(1).expand(9), 4), (lambda: torch.zeros(()), 4)],
)  # fmt: skip
def test_extent_reaches_to_the_end_of_the_last_element(make: Callable[[], torch.Tensor], bytes_: int) -> None:
    assert extent_bytes(make()) == bytes_


def test_tensor_moved_to_the_device_comes_back_with_its_latest_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is the CPU by another name, and moving is cloning."""
    monkeypatch.setattr(windows, "_move_to_device", lambda name, tensor, device: tensor.clone())
    module = nn.BatchNorm1d(2)
    before = {name: tensor.data_ptr() for name, tensor in named_tensors(module).items()}
    with place_tensors(module, named_tensors(module), [], Slab(0, 64, CPU), torch.device("cpu", 0)):
        assert all(tensor.data_ptr() != before[name] for name, tensor in named_tensors(module).items())
        module(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert {name: tensor.data_ptr() for name, tensor in named_tensors(module).items()} == before
    assert module.running_mean is not None
    assert module.running_mean.tolist() == pytest.approx([0.2, 0.3])
    assert module.num_batches_tracked == 1


def test_tensor_without_value_cannot_move() -> None:
    module = nn.Linear(2, 2, device="meta")
    with (
        pytest.raises(InvalidConfig, match="weight has no value, and is not in the ring"),
        place_tensors(module, named_tensors(module), [], Slab(0, 64, CPU), CPU),
    ):
        pass
