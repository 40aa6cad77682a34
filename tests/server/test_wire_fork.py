"""A process that forks with a connection open: it goes on as before, and its child has none of it, and no wait."""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.server.shadow_serving import client_of, serving
from tmmu.client.device.registration import attach_device
from tmmu.client.remote_server import RemoteServer
from tmmu.errors import ReferenceStale, ServerGone

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
MOST_SECONDS = 60


def in_child(function: Callable[[], Any]) -> int:
    """What a child that calls it ends with: 0 where nothing was raised, the signal where it had no end."""
    child = os.fork()
    if child == 0:
        signal.alarm(MOST_SECONDS)
        status = 1
        try:
            function()
            status = 0
        except BaseException:  # noqa: BLE001 - whatever it is, the child ends here
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


def raises(error: type[Exception], function: Callable[[], Any]) -> None:
    with pytest.raises(error):
        function()


def sum_of_ones(remote: RemoteServer) -> float:
    with remote.open_device(), torch.no_grad():
        return float(torch.ones(3, device="remote").sum())


def test_a_child_has_no_part_in_the_connection(tmp_path: Path) -> None:
    with serving(tmp_path) as wire, client_of(wire.address) as remote, remote.open_device(), torch.no_grad():
        connection, tensor = remote.connection, torch.rand(3, device="remote")
        assert in_child(lambda: raises(ServerGone, lambda: attach_device(connection))) == 0
        assert in_child(lambda: raises(ReferenceStale, tensor.tolist)) == 0
        assert in_child(lambda: raises(ReferenceStale, lambda: torch.ones(2, device="remote"))) == 0
        assert in_child(lambda: torch.manual_seed(1)) == 0, "as a worker of a DataLoader does first"
        assert in_child(remote.close) == 0
        assert connection.is_open
        assert remote.connection is connection
        assert len(tensor.tolist()) == 3


def test_a_child_opens_a_connection_of_its_own(tmp_path: Path) -> None:
    with serving(tmp_path) as wire, client_of(wire.address) as remote, remote.open_device(), torch.no_grad():
        tensor = torch.arange(3.0, device="remote")
        assert in_child(lambda: 1 / (sum_of_ones(remote) == 3.0)) == 0
        assert tensor.sum().item() == 3.0


def test_locks_that_others_hold_are_free_in_a_child(tmp_path: Path) -> None:
    """As another thread may hold them, which a child has not."""
    with serving(tmp_path) as wire, client_of(wire.address) as remote, remote.open_device() as device:
        shadow = remote.shadow(torch.nn.Linear(2, 2))
        shadow.wait()
        connection, recorder = remote.connection, device.dispatcher.recorder
        with connection._sending, connection._changed, remote._opening, remote._attaching, recorder.lock, shadow._lock:
            assert in_child(lambda: (torch.manual_seed(1), remote.close())) == 0
            assert in_child(shadow.close) == 0
            assert in_child(lambda: 1 / (sum_of_ones(remote) == 3.0)) == 0
        shadow.close()


def test_an_upload_goes_on_in_the_parent_alone(tmp_path: Path) -> None:
    def run_again() -> None:
        with pytest.raises(ServerGone):
            shadow.wait()
        assert shadow(torch.ones(1, 2)).shape == (1, 2)
        assert shadow.last_run is not None
        assert shadow.last_run.place == "local"
        shadow.wait()
        assert shadow.is_there

    with serving(tmp_path) as wire, client_of(wire.address) as remote:
        shadow = remote.shadow(torch.nn.Linear(2, 2), local_bytes=1)
        shadow._is_over.wait(MOST_SECONDS)
        shadow._is_over.clear()  # as while it is uploaded
        assert in_child(run_again) == 0
        shadow._is_over.set()
        assert shadow.is_there
        shadow.close()
