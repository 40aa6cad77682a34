"""A server's connection of which a test takes the steps of the event loop and of the thread that stays, one at a time.

There is a socket, and neither a loop nor a thread: so a test says who comes first, at each line of the code.
"""

import asyncio
import socket
import sys
from collections.abc import Callable
from contextlib import contextmanager, suppress
from types import FrameType, SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from tests.server.raw_frames import RawFrames, request_of
from tests.unit.wire.sums import Add, Total
from tmmu.server.wire.connection import frame_writer, thread_stay
from tmmu.server.wire.server_connection import ServerConnection
from tmmu.server.wire.wire_call import WireCall
from tmmu.server.wire.wire_door import WireDoor
from tmmu.wire import frame_reader
from tmmu.wire.frames import PREFIX, FrameKind
from tmmu.wire.interface import Message, Payloads, Peer, RequestHeader, ServiceCall

_STEPPED: Final = {
    sys.modules[module].__file__
    for module in (
        ServerConnection.__module__, WireDoor.__module__, WireCall.__module__,
        thread_stay.__name__, frame_writer.__name__, frame_reader.__name__,
    )
}  # fmt: skip
"""Files of whose lines each is a step."""


class SteppedTransport:
    """As asyncio's, of a socket; ``loop`` runs what it is told of."""

    def __init__(self, loop: "SteppedLoop", end: socket.socket) -> None:
        self._loop, self._socket = loop, end
        self._is_paused = self.is_closing = False

    def get_extra_info(self, name: str) -> Any:
        return self._socket if name == "socket" else None

    def set_write_buffer_limits(self, high: int) -> None:
        """The socket takes all."""

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False

    @property
    def is_reading(self) -> bool:
        return not (self._is_paused or self.is_closing)

    def write(self, data: Any) -> None:
        if not self.is_closing:
            self._socket.sendall(data)

    def close(self) -> None:
        if not self.is_closing:
            self.is_closing = True
            self._loop.call_soon(self._end)

    abort = close

    def _end(self) -> None:
        self.protocol.connection_lost(None)
        self._socket.close()


class SteppedLoop:
    """Calls what is due, and reads, when ``turn`` is called."""

    def __init__(self) -> None:
        self._due: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.transport: Any = None

    def call_soon(self, function: Callable[..., object], *arguments: Any) -> None:
        self._due.append((function, arguments))

    call_soon_threadsafe = call_soon

    def call_later(self, _: float, __: Any, *___: Any) -> Any:
        return SimpleNamespace(cancel=lambda: None)

    def turn(self) -> None:
        """What is due, and one read of what has come; nobody else is to read then."""
        due, self._due = self._due, []
        for function, arguments in due:
            function(*arguments)
        if self.transport.is_reading:
            self._read()
        if self._due:
            self.turn()

    def _read(self) -> None:
        protocol = self.transport.protocol
        try:
            count = self.transport.get_extra_info("socket").recv_into(protocol.get_buffer(-1))
        except BlockingIOError:
            return
        if count:
            protocol.buffer_updated(count)
        else:
            self.transport.close()


class Recorder:
    """A service that says in ``events`` what it was asked and told."""

    requests = (Add,)

    def __init__(self) -> None:
        self.events: list[str] = []
        self.is_over: Callable[[], bool] = lambda: False

    def answer(self, header: RequestHeader, payloads: Payloads, call: ServiceCall) -> Message:
        self.events.append("unheard" if self.is_over() and not call.is_cancelled else "answer")
        return Total(value=0), ()

    def connection_lost(self, peer: Peer) -> None:
        self.events.append("lost")


class SteppedConnection:
    """Opened. ``stay_with`` has a thread stay, whose steps ``run_thread`` takes."""

    def __init__(self, door: WireDoor, service: Recorder) -> None:
        self.door, self.service = door, service
        self.door.is_draining = False
        self.service.events.clear()
        self.work: list[Callable[[], object]] = []
        self.door._workers.submit = self.work.append  # type: ignore[method-assign, assignment]
        self.door._cancels.submit = lambda work: work()  # type: ignore[method-assign, assignment, return-value]
        self.client, end = socket.socketpair()
        end.setblocking(False)
        self.loop = SteppedLoop()
        self.transport = self.loop.transport = SteppedTransport(self.loop, end)
        with patch.object(asyncio, "get_running_loop", lambda: self.loop):
            self.served = ServerConnection(self.door, self.transport, set())
        self.service.is_over = lambda: self.served not in self.door.connections
        self.stay = self.served._stay
        self.frames = RawFrames()
        self._open()

    def _open(self) -> None:
        self.served.begin(self.frames.hello())
        self.turn()
        ((_, _, welcome),) = self.received(tag_bytes=0)
        self.client.sendall(self.frames.proof(welcome))
        self.turn()
        assert [kind for kind, _, _ in self.received()] == [FrameKind.READY]

    def turn(self) -> None:
        """The loop's; where a thread stays, the loop does not read behind it."""
        with patch.object(asyncio, "get_running_loop", lambda: self.loop):
            self.loop.turn()
        assert self.stay.owner is None or not self.transport.is_reading, "both would read"

    # -- the client

    def ask(self, header: Any = None) -> bytes:
        """The next request."""
        return self.frames.encoded(FrameKind.REQUEST, self.frames.next_stream(), request_of([], header))

    def ping(self) -> bytes:
        return self.frames.encoded(FrameKind.PING, 0, bytes(8))

    def received(self, *, tag_bytes: int = 16) -> list[tuple[int, int, bytes]]:
        """Kind, stream and body of each frame that came since."""
        data = b""
        with suppress(BlockingIOError, ConnectionError):
            while part := self.client.recv(1 << 20, socket.MSG_DONTWAIT):
                data += part
        frames = []
        while data:
            kind, _, _, stream, length = PREFIX.unpack(data[: PREFIX.size])
            frames.append((kind, stream, data[PREFIX.size : PREFIX.size + length]))
            data = data[PREFIX.size + length + tag_bytes :]
        return frames

    # -- the thread

    def stay_with(self) -> WireCall:
        """Has a thread answer a call and stay; returns the call, behind which the next one is to be read."""
        call = self.served._calls
        for _ in range(2):  # of the first request nobody knows that another one follows at once
            self.client.sendall(self.ask())
            self.turn()
            (work,) = self.work
            self.work.clear()
            last, payloads, send = work.args  # type: ignore[attr-defined]
            assert last in call.values()
            self.door._answer_call(last, payloads, send)
            assert [kind for kind, _, _ in self.received()] == [FrameKind.ANSWER]
            if self.stay.owner is None:
                assert last.next_call() is None
        assert self.stay.owner is last
        self.stay._poll = SimpleNamespace(poll=self._poll)  # type: ignore[assignment]
        return last

    def _poll(self, _: int) -> bool:
        """Whether something is there: of a wait as long as it is until then, or until it is over."""
        end = self.transport.get_extra_info("socket")
        if end.fileno() < 0:
            return True
        try:
            end.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        return True

    def run_thread(self, call: WireCall) -> None:
        """What the thread of ``call``, which is answered, does until it leaves."""
        following = call.next_call()
        while following is not None:
            self.door._answer_call(*following, self.served.send_from_thread)
            following = following[0].next_call()


@contextmanager
def interrupted(connection: SteppedConnection, line: int, action: Callable[[], object]) -> Any:
    """Has the loop do something before the step of that number, or as soon behind it as no lock is held.

    Yields a list, which is no longer empty once it was done.
    """
    done: list[int] = []
    steps, locks = 0, (connection.served.writer.turn, connection.door._counting)

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps
        if frame.f_code.co_filename not in _STEPPED:
            return None
        if event == "line" and not done:
            steps += 1
            if steps > line and not any(lock.locked() for lock in locks):
                done.append(steps)
                sys.settrace(None)
                action()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield done
    finally:
        sys.settrace(before)
