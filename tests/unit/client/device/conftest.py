from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

from tmmu.client.device.registration import RemoteDevice, attach_device
from tmmu.server.graphs.graph_service import GraphService
from tmmu.server.graphs.graph_session import GraphSession
from tmmu.wire.in_process import InProcessConnection
from tmmu.wire.service_table import ServiceTable


@dataclass(frozen=True)
class Remote:
    """An attached device, and the service behind it."""

    device: RemoteDevice
    service: GraphService
    connection: InProcessConnection

    @property
    def session(self) -> GraphSession:
        session = self.service.session_of(self.connection.peer)
        assert session is not None
        return session

    @property
    def bytes(self) -> int:
        """What the server counts for the client."""
        return self.service.usage_of("anybody").bytes

    @property
    def requests(self) -> int:
        return self.device.counts.requests


@pytest.fixture
def remote() -> Iterator[Remote]:
    service = GraphService()
    connection = InProcessConnection(ServiceTable([service]))
    with torch.no_grad(), attach_device(connection) as device:
        yield Remote(device, service, connection)
    connection.close()
    assert service.usage_of("anybody").bytes == 0
    assert service.usage_of("anybody").contents == 0
