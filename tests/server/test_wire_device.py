"""``device="remote"`` over the port of a server: values, what is counted, and who may have tensors."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.server.running import RunningServer, running
from tests.waiting import PATIENCE
from tmmu.errors import InvalidRequest, QuotaExceeded, ReferenceStale
from tmmu.server.settings import load_settings


@pytest.fixture(scope="module")
def tensors(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose clients may have a megabyte of tensors, and of uploads."""
    options = {
        "models": {"text": folder}, "listen": "127.0.0.1:0", "budget": "8MiB", "tensor_bytes": "1MiB",
        "upload_folder": tmp_path_factory.mktemp("uploads") / "new", "upload_bytes": "1MiB",
    }  # fmt: skip
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


def test_a_value_that_is_made_of_logits_there_moves_less_than_a_third_of_a_percent(tensors: RunningServer) -> None:
    """Both ways, all that is on the wire."""
    weights, turns = torch.randn(2, 50_257), 10
    counts = tensors.service.door.counts
    with tensors.remote() as remote, remote.open_device(), torch.no_grad():
        there = weights.to("remote")
        before = 0
        for turn in range(turns + 3):
            if turn == 3:  # its graph is known by then
                before = counts.bytes_in + counts.bytes_out
            row = torch.tensor([1.0, float(turn)])
            assert (row.to("remote") @ there).argmax(-1).item() == (row @ weights).argmax(-1)
        assert counts.bytes_in + counts.bytes_out - before < turns * 0.003 * 4 * 50_257


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


def test_a_shadow_runs_at_a_server_that_keeps_uploads(tensors: RunningServer) -> None:
    model, x = nn.Linear(8, 4), torch.randn(3, 8)
    with tensors.remote() as remote, remote.shadow(model, local_bytes="1KiB") as shadow:
        shadow.wait(PATIENCE)
        assert torch.equal(shadow(x).cpu(), model(x))
        assert repr(shadow) == f"<ShadowModule of a Linear at {tensors.service.address}>"
    uploads = tensors.service.settings.upload_folder
    assert uploads is not None
    assert (uploads.stat().st_mode & 0o777, len(list(uploads.glob("anybody/*")))) == (0o700, 2)


def test_a_server_that_was_not_told_so_has_no_device(server: RunningServer) -> None:
    with server.remote() as remote:
        for use in (remote.open_device, lambda: remote.shadow(nn.Linear(2, 2))):
            with pytest.raises(InvalidRequest):
                use()
