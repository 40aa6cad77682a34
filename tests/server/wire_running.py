"""The server's end of the wire without models: services of tests behind a socket, on an event loop of its own."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

import numpy as np

from tests.waiting import PATIENCE, wait_for
from tmmu.client.client_connection import ClientConnection
from tmmu.client.transport import open_transport
from tmmu.server.keys import KeyRing
from tmmu.server.settings import load_settings
from tmmu.server.wire.server_connection import ServerConnection
from tmmu.server.wire.wire_door import WireDoor
from tmmu.wire.interface import WireService

SIZES: Final = {"payload_bytes": "24MiB", "receive_memory": "24MiB", "max_requests": 8}
"""Settings of a server that has little room."""


def random_bytes(size: int) -> memoryview:
    return memoryview(np.random.default_rng(0).integers(0, 256, size, np.uint8).data)


class FirstBytes(asyncio.Protocol):
    """Hands a connection over with its first bytes, as the HTTP protocol does."""

    def __init__(self, wire: "RunningWire") -> None:
        self._wire = wire

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        ServerConnection(self._wire.door, self._transport, self._wire.connections).begin(data)


@dataclass
class RunningWire:
    door: WireDoor
    loop: asyncio.AbstractEventLoop
    address: str = ""
    connections: set[Any] = field(default_factory=set)

    def connect(self, key: str | None = None, *, tls: Any = False, deadline: float = PATIENCE) -> ClientConnection:
        return ClientConnection(open_transport(self.address, tls, monotonic() + deadline), key, deadline=deadline)

    def socket(self) -> socket.socket:
        """A client that says what it likes."""
        host, _, port = self.address.rpartition(":")
        return socket.create_connection((host, int(port)), PATIENCE)

    def call(self, function: Any) -> None:
        """Runs something in the event loop, to its end."""
        done = threading.Event()
        self.loop.call_soon_threadsafe(lambda: (function(), done.set()))
        assert done.wait(PATIENCE)

    def wait_for(self, condition: Any) -> None:
        wait_for(condition)


@contextmanager
def running_wire(
    services: Sequence[WireService], *, keys: KeyRing | None = None, tls: ssl.SSLContext | None = None, **settings: Any
) -> Iterator[RunningWire]:
    loop = asyncio.new_event_loop()
    wire = RunningWire(WireDoor(services, load_settings(settings), keys), loop)

    async def serve() -> None:
        server = await loop.create_server(lambda: FirstBytes(wire), "127.0.0.1", 0, ssl=tls)
        wire.address = "{}:{}".format(*server.sockets[0].getsockname())
        wire.door.start()
        wire.ended = asyncio.Event()  # type: ignore[attr-defined]
        ready.set()
        await wire.ended.wait()  # type: ignore[attr-defined]
        server.close()
        wire.door.stop()
        await asyncio.sleep(0)
        while wire.connections:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(wire.door.close)

    ready = threading.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert ready.wait(PATIENCE)
    try:
        yield wire
    finally:
        loop.call_soon_threadsafe(wire.ended.set)  # type: ignore[attr-defined]
        thread.join(PATIENCE)
        loop.close()
    assert not thread.is_alive()
