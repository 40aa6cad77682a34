"""A server's connection without a socket: bytes go in, what it would send is counted, requests run at once."""

import asyncio
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from tests.server.raw_frames import RawFrames
from tmmu.server.settings import load_settings
from tmmu.server.wire.server_connection import ServerConnection
from tmmu.server.wire.wire_door import WireDoor
from tmmu.wire.frames import PREFIX
from tmmu.wire.interface import WireService


class _Handle:
    def cancel(self) -> None:
        """Nothing waits."""


class _Loop:
    """Runs what it is given when it is told to; no time passes."""

    def __init__(self) -> None:
        self.due: list[Any] = []

    def call_soon(self, function: Any, *arguments: Any) -> None:
        self.due.append((function, arguments))

    call_soon_threadsafe = call_soon

    def call_later(self, seconds: float, function: Any, *arguments: Any) -> _Handle:
        return _Handle()

    def run(self) -> None:
        while self.due:
            function, arguments = self.due.pop(0)
            function(*arguments)


class _Transport:
    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.is_closed = False

    def set_write_buffer_limits(self, high: int) -> None:
        """There is no buffer."""

    def set_protocol(self, protocol: Any) -> None:
        """There is but one."""

    def get_extra_info(self, name: str) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return 1  # so that answers go through the loop

    def write(self, data: Any) -> None:
        self.sent.append(bytes(data))

    def close(self) -> None:
        self.is_closed = True

    abort = close


class BytesConnection:
    """Opened; ``encoded`` gives frames the tags of its client."""

    door: WireDoor | None = None

    def __init__(self, services: Sequence[WireService]) -> None:
        if BytesConnection.door is None:
            BytesConnection.door = WireDoor(services, load_settings({"payload_bytes": "1MiB"}), None)
            BytesConnection.door.run = self._run_now  # type: ignore[method-assign]
            BytesConnection.door.cancel = lambda callbacks: [call() for call in callbacks]  # type: ignore[method-assign, assignment, misc]
        self._loop, self._transport = _Loop(), _Transport()
        self._connection = ServerConnection.__new__(ServerConnection)
        self._make()
        self.most_held = 0

    def _make(self) -> None:
        with patch.object(asyncio, "get_running_loop", lambda: self._loop):
            self._connection.__init__(self.door, self._transport, set())  # type: ignore[misc, arg-type]
        self._frames = RawFrames()
        self.encoded, self.next_stream = self._frames.encoded, self._frames.next_stream
        self.feed(self._frames.hello())
        self.feed(self._frames.proof(self._transport.sent[-1][PREFIX.size :]))
        assert self._connection.is_ready

    def _run_now(self, call: Any, payloads: Any, send: Any, stay: Any) -> None:
        assert self.door is not None
        send(call, self.door._answer(call, payloads))

    @property
    def is_over(self) -> bool:
        if self._transport.is_closed:
            self._connection.connection_lost(None)
        return self._transport.is_closed

    def feed(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest and not self._transport.is_closed:
            place = self._connection.get_buffer(-1)
            count = min(len(place), len(rest))
            place[:count] = rest[:count]
            self._connection.buffer_updated(count)
            rest = rest[count:]
            self._loop.run()

    def settle(self) -> None:
        self._transport.sent.clear()
        assert self.door is not None
        self.most_held = max(self.most_held, self.door.memory.used)
