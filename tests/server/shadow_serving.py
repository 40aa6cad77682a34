"""A server that lets clients have tensors and keeps their uploads, without models, and clients of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.server.wire_running import RunningWire, running_wire
from tests.waiting import PATIENCE
from tmmu.client.remote_server import RemoteServer
from tmmu.server.graphs.graph_limits import GraphLimits
from tmmu.server.graphs.graph_service import GraphService
from tmmu.server.uploads.upload_service import UploadService
from tmmu.server.uploads.upload_store import UploadStore


@contextmanager
def serving(folder: Path, most_bytes: int = 64 << 20, **settings: Any) -> Iterator[RunningWire]:
    store = UploadStore(folder, most_bytes, lambda client: client)
    services = [GraphService(GraphLimits(bytes=64 << 20), uploads=store), UploadService(store)]
    with running_wire(services, **settings) as wire:
        yield wire


@contextmanager
def client_of(address: str, deadline: float = PATIENCE) -> Iterator[RemoteServer]:
    with RemoteServer(address, key=None, tls=False, deadline=deadline) as remote:
        yield remote
