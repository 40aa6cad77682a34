"""TLS in front of a protocol: who shakes hands is a connection already, one of so many, and has so long for it."""

import asyncio
from collections.abc import Callable, MutableSet
from ssl import SSLContext
from typing import Any


class TlsGate(asyncio.Protocol):
    """Hands a connection over to what ``make`` makes, once its handshake is done.

    It is in ``connections`` until then; beyond ``most`` of them it is closed before a byte of it is read. A handshake
    that is not done after ``seconds`` is the end of it.
    """

    def __init__(
        self,
        make: Callable[[], asyncio.Protocol],
        context: SSLContext,
        connections: MutableSet[Any],
        *,
        most: int,
        seconds: float,
    ) -> None:
        self._make, self._context, self._connections = make, context, connections
        self._most, self._seconds = most, seconds
        self._raw: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._early, self._is_over = bytearray(), False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there, before a handshake."""
        assert isinstance(transport, asyncio.Transport)
        if len(self._connections) >= self._most:
            transport.abort()
            return
        self._raw = transport
        self._connections.add(self)
        self._task = asyncio.get_running_loop().create_task(self._shake_hands(transport))

    async def _shake_hands(self, raw: asyncio.Transport) -> None:
        try:
            transport = await asyncio.get_running_loop().start_tls(
                raw, self, self._context, server_side=True, ssl_handshake_timeout=self._seconds
            )
        except OSError:  # errors of TLS, and of time, are such
            raw.abort()
            return
        finally:
            self._connections.discard(self)
        if transport is None or self._is_over:
            return
        protocol = self._make()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if self._early and not transport.is_closing():
            protocol.data_received(bytes(self._early))

    def data_received(self, data: bytes) -> None:
        """Bytes that came with the end of the handshake: whoever gets the connection gets them, too."""
        self._early += data

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's name
        """The client is gone before it was handed over."""
        self._is_over = True
        self._connections.discard(self)

    def shutdown(self) -> None:
        """The server is to end."""
        if self._raw is not None:
            self._raw.abort()
