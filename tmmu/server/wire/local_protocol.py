"""The wire at a Unix socket, where nothing else is spoken."""

import asyncio
from collections.abc import MutableSet
from typing import Any

from tmmu.server.wire.server_connection import ServerConnection
from tmmu.server.wire.wire_door import WireDoor


class LocalProtocol(asyncio.Protocol):
    """Hands each connection over, as long as no more than ``most`` are open, of all kinds."""

    def __init__(self, door: WireDoor, connections: MutableSet[Any], most: int) -> None:
        self._door, self._connections, self._most = door, connections, most

    def connection_made(self, transport: Any) -> None:
        """A client is there."""
        if len(self._connections) >= self._most:
            transport.abort()
        else:
            ServerConnection(self._door, transport, self._connections).begin(b"")
