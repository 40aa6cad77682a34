"""The device type: added when it is first attached, one at a time, gone when it is closed."""

import subprocess

import pytest
import torch
from torch.utils import checkpoint

from tests.unit.client.device.conftest import Remote
from tests.warm_server import WarmPython
from tmmu.client.device.registration import attach_device
from tmmu.errors import DeviceTaken, ReferenceStale, ServerGone
from tmmu.server.graphs.graph_service import GraphService
from tmmu.wire.in_process import InProcessConnection
from tmmu.wire.service_table import ServiceTable

PROGRAM = """
import torch
from tmmu.client.device.registration import attach_device
from tmmu.server.graphs.graph_service import GraphService
from tmmu.wire.in_process import InProcessConnection
from tmmu.wire.service_table import ServiceTable
try:
    torch.device("remote")
except RuntimeError:
    print("absent")
if {taken}:
    torch.utils.rename_privateuse1_backend("mine")
try:
    with attach_device(InProcessConnection(ServiceTable([GraphService()]))):
        print(torch.ones(2, device="remote").tolist())
except Exception as error:
    print(error)
"""


@pytest.mark.parametrize("taken", [False, True])
def test_the_device_is_added_when_it_is_attached_and_not_on_import(taken: bool, warm_python: WarmPython) -> None:
    command = [warm_python.python(), "-c", PROGRAM.format(taken=taken)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "absent"
    assert lines[1].startswith("DEVICE_TAKEN: this process has added the device 'mine'" if taken else "[1.0, 1.0]")


def connect() -> InProcessConnection:
    return InProcessConnection(ServiceTable([GraphService()]))


def test_one_device_is_attached_at_a_time(remote: Remote) -> None:
    with pytest.raises(DeviceTaken, match="attached already"):
        attach_device(connect())
    assert torch.ones(1, device="remote").item() == 1


def test_programs_that_look_for_an_accelerator_do_not_find_it(remote: Remote) -> None:
    assert not torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator(check_available=True) is None
    assert checkpoint.DefaultDeviceType.get_device_type() == "cpu"
    with torch.enable_grad():
        x = torch.ones(2, requires_grad=True)
        checkpoint.checkpoint(torch.sin, x, use_reentrant=False).sum().backward()
    assert x.grad is not None


def test_tensors_of_a_closed_device_are_stale() -> None:
    device = attach_device(connect())
    x = torch.ones(2, device="remote")
    device.close()
    device.close()
    for use in (lambda: x + 1, x.tolist, lambda: torch.ones(2, device="remote"), lambda: torch.ones(2).to("remote")):
        with pytest.raises(ReferenceStale):
            use()
    with attach_device(connect()) as other:
        y = torch.ones(2, device="remote")
        with pytest.raises(ReferenceStale):
            x + y
        assert y.tolist() == [1, 1]
        assert other.counts.looks == 1


def test_a_connection_that_is_lost_is_one_clear_error() -> None:
    connection = connect()
    with attach_device(connection):
        x = torch.ones(2, device="remote") + 1
        connection.close()
        with pytest.raises(ServerGone):
            x.tolist()
        with pytest.raises(ReferenceStale):
            x.tolist()


def test_a_server_that_forgets_is_told_again() -> None:
    service = GraphService()
    connection = InProcessConnection(ServiceTable([service]))
    with attach_device(connection):
        x = torch.ones(4, device="remote")
        for turn in range(4):
            assert (x * 2 + 1).tolist() == [3] * 4
            x = torch.ones(4, device="remote")
            session = service.session_of(connection.peer)
            assert session is not None
            if turn % 2:
                session._graphs.clear()
            session._forms.clear()
