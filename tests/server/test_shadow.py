"""Shadows: a module runs here until it is on the server, then there, with one result; what changed is never stale."""

import copy
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import torch
from torch import nn

from tests.server.shadow_serving import client_of, serving
from tests.server.wire_running import RunningWire
from tests.waiting import PATIENCE, wait_for
from tests.warm_server import WarmPython
from tmmu.client.remote_server import RemoteServer
from tmmu.client.shadow import tensor_uploads
from tmmu.client.shadow.shadow_module import ShadowModule
from tmmu.errors import (
    CaptureFailed,
    DeviceMemory,
    InvalidConfig,
    QuotaExceeded,
    ServerGone,
    UnsupportedOp,
    WireBroken,
)
from tmmu.server.graphs.graph_service import GraphService
from tmmu.wire.upload_messages import PutUploads


class Tied(nn.Module):
    """Two layers, a buffer and a tied weight."""

    def __init__(self, size: int = 64) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(size, size), nn.Linear(size, size)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.full((size,), 1.5))
        self.register_buffer("mask", torch.arange(size) % 2 == 0)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.second(self.first(x).relu()) * self.scale
        return {"all": y, "even": y * self.mask}


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningWire]:
    with serving(tmp_path_factory.mktemp("uploads")) as wire:
        yield wire


@pytest.fixture
def remote(wire: RunningWire) -> Iterator[RemoteServer]:
    with client_of(wire.address) as remote:
        yield remote


def module(seed: int) -> Tied:
    torch.manual_seed(seed)
    return Tied()


def test_a_module_runs_here_and_then_there_with_the_same_bits(wire: RunningWire, remote: RemoteServer) -> None:
    local, x = module(0), torch.randn(3, 64)
    expected = local(x)["all"].detach()
    with remote.shadow(local) as shadow:
        shadow.wait(PATIENCE)
        result = shadow(x)
        assert shadow.last_run is not None
        assert (shadow.last_run.place, result["all"].device.type) == ("remote", "remote")
        assert torch.equal(result["all"].cpu(), expected)
        assert shadow.upload.total == shadow.upload.sent == 64 * 64 * 4 + 3 * 64 * 4 + 64
        del result
    service = wire.door.table.services[0]
    assert isinstance(service, GraphService)
    assert service.usage_of("anybody").bytes == 0
    with remote.shadow(copy.deepcopy(local)) as again:
        again.wait(PATIENCE)
        assert (again.upload.sent, again.upload.found) == (0, again.upload.total)
        assert torch.equal(again(x=x)["even"].cpu(), local(x)["even"])


def run_before_puts(monkeypatch: pytest.MonkeyPatch, action: Callable[[int], object]) -> None:
    """Uploads go in parts of 4 KiB, and something happens before each, which is given its number."""
    monkeypatch.setattr(tensor_uploads, "PART_BYTES", 4096)
    request, count = RemoteServer.request, iter(range(1 << 20))

    def counting(self: RemoteServer, header: Any, *args: Any, **options: Any) -> Any:
        if isinstance(header, PutUploads):
            action(next(count))
        return request(self, header, *args, **options)

    monkeypatch.setattr(RemoteServer, "request", counting)


def test_until_it_is_there_a_module_runs_here_with_room(remote: RemoteServer, monkeypatch: pytest.MonkeyPatch) -> None:
    local, x, go = module(1), torch.randn(2, 64), Event()
    run_before_puts(monkeypatch, lambda number: number or go.wait(PATIENCE))
    free = [10_000]
    with ShadowModule(remote, local, free_bytes=lambda: free[0], local_bytes=6000) as shadow:
        wait_for(lambda: shadow.upload.sent)
        assert torch.equal(shadow(x)["all"], local(x)["all"])
        assert shadow.last_run is not None
        assert shadow.last_run.place == "local"
        assert shadow.last_run.reason == f"{shadow.upload.there} of 17216 bytes are there"
        free[0] = 8999
        with pytest.raises(DeviceMemory, match="asks for 9000 free ones, of which there are 8999"):
            shadow(x)
        assert not shadow.is_there
        go.set()
        shadow.wait(PATIENCE)
        assert torch.equal(shadow(x)["all"].cpu(), local(x)["all"])


def test_a_local_run_asks_for_half_as_much_again_as_its_plan(remote: RemoteServer, monkeypatch: Any) -> None:
    local, x, go = module(2), torch.randn(32, 64), Event()
    run_before_puts(monkeypatch, lambda number: number or go.wait(PATIENCE))
    planned = 2 * 32 * 64 * 4  # what a layer reads, and what it writes
    free = [planned * 3 // 2 - 1]
    with ShadowModule(remote, local, free_bytes=lambda: free[0]) as shadow:
        with pytest.raises(DeviceMemory) as error:
            shadow(x)
        assert error.value.fields == {"planned": planned, "needed": free[0] + 1, "free": free[0]}
        free[0] += 1
        assert torch.equal(shadow(x)["even"], local(x)["even"])
        go.set()


def test_what_changed_is_uploaded_again_and_never_stale(remote: RemoteServer) -> None:
    local, x = module(3), torch.randn(2, 64)
    with remote.shadow(local) as shadow:
        shadow.wait(PATIENCE)
        shadow(x)
        with torch.no_grad():
            local.first.bias.add_(1)
        result = shadow(x)["all"]
        assert shadow.last_run is not None
        assert shadow.last_run.reason == "1 tensors have changed since they were uploaded, first.bias first"
        assert torch.equal(result, local(x)["all"])
        shadow.wait(PATIENCE)
        assert (shadow.upload.sent, shadow(x)["all"].device.type) == (256, "remote")
        local.scale = torch.full((64,), 2.5)
        shadow(x)
        assert shadow.last_run.place == "local"
        shadow.wait(PATIENCE)
        assert torch.equal(shadow(x)["all"].cpu(), local(x)["all"])
        local.scale.data.mul_(2)  # torch does not count it
        shadow.sync(changed=True)
        shadow.wait(PATIENCE)
        assert torch.equal(shadow(x)["all"].cpu(), local(x)["all"])


def test_what_changes_while_it_is_sent_is_noticed(remote: RemoteServer, monkeypatch: pytest.MonkeyPatch) -> None:
    local, x = module(4), torch.randn(2, 64)

    def write(number: int) -> None:
        if number == 2:
            with torch.no_grad():
                local.first.weight.mul_(2)

    run_before_puts(monkeypatch, write)
    with remote.shadow(local) as shadow:
        shadow.wait(PATIENCE)
        assert not shadow.is_there
        assert torch.equal(shadow(x)["all"], local(x)["all"])
        shadow.wait(PATIENCE)
        assert torch.equal(shadow(x)["all"].cpu(), local(x)["all"])
        assert shadow.last_run is not None
        assert shadow.last_run.place == "remote"


def test_what_is_told_to_have_changed_while_it_is_sent_is_never_stale(
    remote: RemoteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, x, go, shadows = module(8), torch.randn(2, 64), Event(), list[ShadowModule]()

    def write(number: int) -> None:
        if number == 4:  # the weight is there to its last byte
            assert go.wait(PATIENCE)
            local.first.weight.data.mul_(2)  # torch does not count it
            shadows[0].sync(changed=True)

    run_before_puts(monkeypatch, write)
    with remote.shadow(local) as shadow:
        shadows.append(shadow)
        go.set()
        shadow.wait(PATIENCE)
        assert torch.equal(shadow(x)["all"].cpu(), local(x)["all"])
        assert shadow.last_run is not None
        assert shadow.last_run.place == "remote"


def test_a_write_that_nothing_counts_while_it_is_sent_fails_one_upload(
    remote: RemoteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, x = module(9), torch.randn(2, 64)
    run_before_puts(monkeypatch, lambda number: number == 2 and local.first.weight.data.mul_(2))
    with remote.shadow(local) as shadow:
        with pytest.raises(WireBroken, match="another hash"):
            shadow.wait(PATIENCE)
        shadow.sync()
        shadow.wait(PATIENCE)
        assert torch.equal(shadow(x)["all"].cpu(), local(x)["all"])
        assert shadow.is_there


def test_a_module_that_writes_its_own_tensors_is_refused_there(remote: RemoteServer) -> None:
    local, x = nn.BatchNorm1d(8), torch.randn(4, 8)
    with remote.shadow(local) as shadow:
        shadow.wait(PATIENCE)
        with pytest.raises(UnsupportedOp, match="the module writes"):
            shadow(x)
        local.eval()
        shadow.sync()
        shadow.wait(PATIENCE)
        assert shadow.upload.sent == 0
        assert torch.equal(shadow(x).cpu(), local(x))


class Assigning(nn.Module):
    """Puts what ``change`` makes of its table in the place of it, at each call."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self._change = change
        self.register_buffer("table", torch.arange(9.0).reshape(3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = x + self.table
        self.table = self._change(self.table)
        return result


@pytest.mark.parametrize("change", [torch.Tensor.t, lambda table: table + 1, lambda table: torch.ones(table.shape)])
def test_a_module_that_assigns_its_own_tensors_is_refused_there(
    remote: RemoteServer, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    local, x = Assigning(change), torch.zeros(3, 3)
    with remote.shadow(local) as shadow:
        shadow.wait(PATIENCE)
        with pytest.raises(UnsupportedOp, match="the module writes table"):
            shadow(x)
        assert not shadow.is_there
        assert torch.equal(local.table, torch.arange(9.0).reshape(3, 3))


def test_a_call_that_runs_here_keeps_its_parameters_to_its_end(remote: RemoteServer, monkeypatch: Any) -> None:
    class Slow(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inside.set()
            go.wait(PATIENCE)
            return super().forward(x)

    local, inside, go, upload = Slow(4, 4), Event(), Event(), Event()
    run_before_puts(monkeypatch, lambda number: number or upload.wait(PATIENCE))
    results: list[torch.Tensor] = []
    x = torch.randn(4)
    with remote.shadow(local, local_bytes=0) as shadow:
        thread = Thread(target=lambda: results.append(shadow(x)))
        thread.start()
        assert inside.wait(PATIENCE)
        upload.set()
        shadow.wait(PATIENCE)
        assert shadow.is_there
        other = Thread(target=lambda: results.append(shadow(x)))
        other.start()
        wait_for(lambda: shadow._local_calls == 2)
        go.set()
        thread.join(PATIENCE)
        other.join(PATIENCE)
        assert all(torch.equal(result.cpu(), local(x)) for result in results)
        assert results[0].device.type == "cpu"
        assert shadow(x).device.type == "remote"


def test_what_has_no_shadow_is_refused_at_once(remote: RemoteServer) -> None:
    with torch.inference_mode():
        uncounted = nn.Linear(2, 2)
    for subject in (torch.ones(2), nn.Linear(2, 2, device="meta"), uncounted):
        with pytest.raises(InvalidConfig):
            remote.shadow(subject)  # type: ignore[arg-type]
    for size in (-1, 1.5, True, "much"):
        with pytest.raises(InvalidConfig):
            remote.shadow(nn.Linear(2, 2), local_bytes=size)  # type: ignore[arg-type]
    shadow = remote.shadow(nn.Linear(2, 2))
    shadow.close()
    shadow.close()
    with pytest.raises(InvalidConfig, match="closed"):
        shadow(torch.ones(2))


def test_a_module_without_a_plan_runs_here_where_its_bytes_are_said(remote: RemoteServer, monkeypatch: Any) -> None:
    class Double(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.from_numpy(x.numpy().copy())

    go = Event()
    run_before_puts(monkeypatch, lambda number: number or go.wait(PATIENCE))
    with remote.shadow(Double(4, 4)) as shadow, remote.shadow(Double(4, 4), local_bytes="1KiB") as told:
        with pytest.raises(CaptureFailed, match="what a local run takes is not known"):
            shadow(torch.ones(4))
        assert told(torch.ones(4)).sum() == 8
        go.set()
        shadow.wait(PATIENCE)
        assert shadow(torch.ones(4)).sum().item() == 8


def test_an_upload_that_is_refused_says_so_at_each_call(tmp_path: Path) -> None:
    with serving(tmp_path, 1000) as wire, client_of(wire.address) as remote, remote.shadow(module(5)) as shadow:
        for use in (lambda: shadow.wait(PATIENCE), lambda: shadow(torch.ones(64)), lambda: shadow(torch.ones(64))):
            with pytest.raises(QuotaExceeded, match="17216 bytes of uploads, of 1000"):
                use()


def test_a_connection_that_breaks_costs_one_error_and_the_part_under_way(
    wire: RunningWire, remote: RemoteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, x = module(7), torch.randn(2, 64)

    def end_connections(number: int) -> None:
        if number == 3:
            wire.call(lambda: [connection._transport.abort() for connection in tuple(wire.connections)])

    run_before_puts(monkeypatch, end_connections)
    with remote.shadow(local) as shadow:
        with pytest.raises(ServerGone):
            shadow.wait(PATIENCE)
        there = shadow.upload.there
        assert there >= 3 * 4096
        shadow(x)
        assert shadow.last_run is not None
        assert shadow.last_run.reason.startswith("SERVER_GONE")
        shadow.wait(PATIENCE)  # the call has begun again
        # A thread that reads the connection may have kept the part under way, whose answer then came to nobody.
        assert shadow.upload.found in (there, there + 4096)
        assert shadow.upload.found + shadow.upload.sent == 17216
        assert torch.equal(shadow(x)["all"].cpu(), local(x)["all"])
        end_connections(3)
        wait_for(lambda: not remote._connection.is_open)  # type: ignore[union-attr]
        assert torch.equal(shadow(x)["all"], local(x)["all"])
        assert shadow.last_run.reason == "the device was closed, or its connection broke"
        shadow.wait(PATIENCE)
        assert shadow.upload.sent == 0
        assert torch.equal(shadow(x)["all"].cpu(), local(x)["all"])


SERVER = """
import os, sys, threading
from pathlib import Path
from tests.server.shadow_serving import serving
with serving(Path(sys.argv[1])) as wire:
    print(os.getpid(), wire.address, flush=True)
    threading.Event().wait(600)
"""


@pytest.mark.slow
def test_a_server_that_is_killed_costs_one_error_and_the_part_under_way(
    tmp_path: Path, warm_python: WarmPython, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, x = module(6), torch.randn(2, 64)
    command = [str(warm_python.python()), "-c", SERVER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid, address = process.stdout.readline().split()
        run_before_puts(monkeypatch, lambda number: number == 3 and os.kill(int(pid), signal.SIGKILL))
        with client_of(address) as remote, remote.shadow(local) as shadow:
            with pytest.raises(ServerGone):
                shadow.wait(PATIENCE)
            assert torch.equal(shadow(x)["all"], local(x)["all"])
            assert shadow.last_run is not None
            assert shadow.last_run.reason.startswith("SERVER_GONE")
            with pytest.raises(ServerGone):
                shadow.wait(PATIENCE)
            with serving(tmp_path) as wire:
                remote.address = wire.address
                shadow.sync()
                shadow.wait(PATIENCE)
                assert (shadow.upload.found, shadow.upload.sent) == (3 * 4096, 17216 - 3 * 4096)
                assert torch.equal(shadow(x)["all"].cpu(), local(x)["all"])
