"""A server that runs beside the tests, in a thread of their process, so that they can look into its engines."""

import logging
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from tests.waiting import PATIENCE, wait_for
from tmmu.client.connect import connect
from tmmu.client.remote_server import RemoteServer
from tmmu.server.service import Service
from tmmu.server.settings import ServerSettings

"""Seconds after which a wait is a failure; no test asserts a time."""


@contextmanager
def server_log() -> Iterator[list[logging.LogRecord]]:
    """Block in which all that servers of this process log is kept, at level ``debug``."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("tmmu.server")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield records
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@dataclass(frozen=True)
class RunningServer:
    """A server, and a client of it."""

    service: Service
    client: httpx.Client
    drain: Callable[[], None]
    """As a signal does."""
    connections: Callable[[], int]
    """How many are open."""
    ready: threading.Event
    thread: threading.Thread

    @contextmanager
    def log_of(self, trace: str, *, has_spans: bool = False) -> Iterator[list[logging.LogRecord]]:
        """The records of one trace, of which the log has the request at the end of the block."""
        records: list[logging.LogRecord] = []
        handler = logging.Handler()
        handler.emit = records.append  # type: ignore[method-assign]
        handler.addFilter(lambda record: record.__dict__["tmmu_fields"].get("trace") == trace)
        handler.addFilter(lambda record: has_spans or record.getMessage() != "span")
        logger = logging.getLogger("tmmu.server")
        level = logger.level
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
        try:
            yield records
            self.wait_for(lambda: any(record.getMessage() == "request" for record in records))
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)

    @property
    def url(self) -> str:
        return self.service.url

    @contextmanager
    def remote(self, key: str | None = None, **options: Any) -> Iterator[RemoteServer]:
        """A client over the wire."""
        with connect(str(self.service.address), key=key, deadline=PATIENCE, **options) as remote:
            yield remote

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self.client.post(f"/v1/{path}", json=body, **options)

    def engine(self, name: str) -> Any:
        return self.service.models.find(name).engine

    def data_used(self, name: str) -> int:
        return int(self.engine(name).usage["data"].used)

    def metric(self, name: str, **labels: str) -> float:
        found = self.service.metrics.registry.get_sample_value(name, labels)
        return 0.0 if found is None else found

    def wait_for(self, condition: Any) -> None:
        """Waits until something is so; fails where it never is."""
        wait_for(condition)


@contextmanager
def starting(settings: ServerSettings) -> Iterator[RunningServer]:
    """A server whose door is open, whether or not its models are loaded; it is drained at the end."""
    service = Service(settings)
    ready, servers = threading.Event(), []
    thread = threading.Thread(target=service.run, args=(lambda _: ready.set(),), daemon=True)
    original = service._load

    async def note_server(server: Any, on_ready: Any) -> None:
        servers.append(server)
        await original(server, on_ready)

    def drain() -> None:
        for server in servers:
            server.handle_exit(15, None)

    def connections() -> int:
        return sum(len(server.server_state.connections) for server in servers)

    service._load = note_server  # type: ignore[method-assign]
    thread.start()
    try:
        certificate = settings.tls_cert
        trusted = True if certificate is None else ssl.create_default_context(cafile=str(certificate))
        with httpx.Client(base_url=service.url, timeout=PATIENCE, verify=trusted) as client:
            assert client.get("/health").status_code == 200
            yield RunningServer(service, client, drain, connections, ready, thread)
    finally:
        drain()
        thread.join(PATIENCE)
    assert not thread.is_alive()


@contextmanager
def running(settings: ServerSettings) -> Iterator[RunningServer]:
    """A server with its models loaded; it is drained at the end."""
    with starting(settings) as server:
        assert server.ready.wait(PATIENCE), server.service._failure
        yield server
