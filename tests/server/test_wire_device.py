"""``device="remote"`` over the port of a server: values, what is counted, and who may have tensors."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.server.running import RunningServer, running
from tmmu.errors import InvalidRequest, QuotaExceeded, ReferenceStale
from tmmu.server.settings import load_settings


@pytest.fixture(scope="module")
def tensors(folder: Path) -> Iterator[RunningServer]:
    """A server whose clients may have a megabyte of tensors."""
    options = {"models": {"text": folder}, "listen": "127.0.0.1:0", "budget": "8MiB", "tensor_bytes": "1MiB"}
    with running(load_settings(options)) as server:
        yield server


def test_a_model_on_the_device_has_local_bits(tensors: RunningServer) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), torch.randn(3, 8)
    expected = model(x).detach()
    with tensors.remote() as remote, remote.open_device() as device, torch.no_grad():
        result = model.to("remote")(x.to("remote"))
        before = device.counts.requests
        assert torch.equal(result.cpu(), expected)
        assert device.counts.requests == before + 1
        total = torch.ones(5, device="remote").cumsum(0)
        while total[0].item() < 10:  # values decide how often
            total = total * 2
        assert total.tolist() == [16.0, 32.0, 48.0, 64.0, 80.0]


def test_tensors_of_a_client_have_a_bound_and_end_with_its_connection(tensors: RunningServer) -> None:
    with tensors.remote() as remote:
        device = remote.open_device()
        kept = torch.ones(1000, device="remote")
        assert kept.sum().item() == 1000
        with pytest.raises(QuotaExceeded):
            torch.ones(1 << 20, device="remote").sum().item()
        device.close()
        with pytest.raises(ReferenceStale):
            kept.cpu()
    tensors.wait_for(lambda: not tensors.service.door.connections)


def test_a_server_that_was_not_told_so_has_no_device(server: RunningServer) -> None:
    with server.remote() as remote, pytest.raises(InvalidRequest):
        remote.open_device()
