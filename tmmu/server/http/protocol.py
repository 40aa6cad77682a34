"""The HTTP protocol of uvicorn with a deadline for the headers of each request, and a limit of open connections.

A connection whose first byte begins no HTTP, but the wire, is handed over.
"""

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.protocols.http.h11_impl import H11Protocol


class GuardedProtocol(H11Protocol):
    """Closes a connection that has no whole request line and headers within ``header_seconds`` of its first byte, or of
    the connection itself. Answers 503 to a connection beyond ``most_connections``, and closes it; uvicorn's own limit
    refuses requests of all connections then, and the last that it should take.
    """

    header_seconds = 10.0
    most_connections = 1000
    other_beginning = b""
    """The first byte of what is no HTTP."""
    hand_over: ClassVar[Callable[["GuardedProtocol", bytes], object] | None] = None
    """Takes a connection that begins with it, and the bytes that came."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._deadline: asyncio.TimerHandle | None = None
        self._is_new = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there."""
        super().connection_made(transport)
        if len(self.connections) > self.most_connections:
            self.app = service_unavailable
        self._begin()

    def data_received(self, data: bytes) -> None:
        """Bytes came; where no request is under way, its headers are awaited from now on."""
        is_new, self._is_new = self._is_new, False
        if is_new and data[:1] == self.other_beginning and len(self.connections) <= self.most_connections:
            self._stop()
            self.connections.discard(self)
            type(self).hand_over(self, data)  # type: ignore[misc] # set where the beginning is
            return
        cycle_before = self.cycle
        if self._deadline is None and (cycle_before is None or cycle_before.response_complete):
            self._begin()
        super().data_received(data)
        if self.cycle is not cycle_before:
            self._stop()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._stop()
        super().connection_lost(exc)

    def _begin(self) -> None:
        self._deadline = self.loop.call_later(self.header_seconds, self._close)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.close()
