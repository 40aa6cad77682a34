"""A connection without a socket: requests go through the same encoding, limits and deadlines to services beside it.

For tests of services and of clients, and for a server and a client in one process.
"""

from collections.abc import Iterator
from itertools import count
from queue import SimpleQueue
from threading import Lock, Thread, Timer
from time import monotonic
from typing import Any, Final

import msgspec

from tmmu.errors import DeadlineExceeded, InternalError, RequestTooLarge, ServerGone, TmmuError
from tmmu.wire.interface import Cancellation, Message, Payloads, Peer, RequestHeader
from tmmu.wire.limits import WireLimits
from tmmu.wire.service_table import ServiceTable
from tmmu.wire.stages import StageTimeline

_NUMBERS: Final = count(1)
_DEADLINE: Final = 30.0


class InProcessCall(Cancellation):
    """A request under way; ``events`` has its parts, and last its answer or what it failed of."""

    def __init__(self, peer: Peer, seconds: float) -> None:
        super().__init__()
        self.peer, self.deadline, self.stages = peer, monotonic() + seconds, StageTimeline()
        self.events: SimpleQueue[tuple[str, Any]] = SimpleQueue()

    def send_part(self, header: msgspec.Struct, payloads: Payloads = ()) -> None:
        """As ``ServiceCall.send_part``."""
        if self.is_cancelled:
            raise DeadlineExceeded("nobody waits for the answer", fix="give the request a later deadline")
        self.events.put(("part", (msgspec.msgpack.encode(header), _copies(payloads))))

    def cancel(self) -> None:
        """Nobody waits any more."""
        for callback in self.end():
            callback()


class InProcessConnection:
    """Requests to the services of a table, as the client ``client``; each runs on a thread of its own."""

    def __init__(self, table: ServiceTable, *, client: str = "anybody", limits: WireLimits | None = None) -> None:
        self._table, self.limits = table, limits or WireLimits()
        self.peer = Peer(client=client, connection=f"in process {next(_NUMBERS)}", limits=self.limits)
        self.is_open = True
        self._calls: set[InProcessCall] = set()
        self._lock, self._running = Lock(), 0

    def request(self, header: RequestHeader, payloads: Payloads = (), *, deadline: float | None = None) -> Message:
        """As ``Connection.request``."""
        *_, answer = self.stream(header, payloads, deadline=deadline)
        return answer

    def stream(
        self, header: RequestHeader, payloads: Payloads = (), *, deadline: float | None = None
    ) -> Iterator[Message]:
        """As ``Connection.stream``."""
        call = self._begin(header, payloads, _DEADLINE if deadline is None else deadline)
        timer = Timer(max(call.deadline - monotonic(), 0), self._end_late, (call,))
        timer.daemon = True
        timer.start()
        try:
            while True:
                kind, value = call.events.get()
                if kind == "failure":
                    raise value
                encoded, beside = value
                expected = header.part if kind == "part" else header.answer
                yield msgspec.msgpack.decode(encoded, type=expected), beside
                if kind == "answer":
                    return
        finally:
            timer.cancel()
            call.cancel()
            self._calls.discard(call)

    def post(self, header: RequestHeader) -> None:
        """As ``Connection.post``."""
        self._begin(header, (), _DEADLINE)

    def close(self) -> None:
        """As ``Connection.close``."""
        with self._lock:
            was_open, self.is_open, is_over = self.is_open, False, not self._running
        if not was_open:
            return
        for call in tuple(self._calls):
            call.cancel()
            call.events.put(("failure", _gone()))
        if is_over:
            self._table.connection_lost(self.peer)

    def _begin(self, header: RequestHeader, payloads: Payloads, seconds: float) -> InProcessCall:
        encoded = msgspec.msgpack.encode(header)
        if len(encoded) > self.limits.header_bytes or sum(map(len, payloads)) > self.limits.payload_bytes:
            raise RequestTooLarge("the request is larger than the server takes", fix="send less at once")
        if len(payloads) > self.limits.payloads:
            raise RequestTooLarge(f"{len(payloads)} payloads", fix=f"send at most {self.limits.payloads}")
        call = InProcessCall(self.peer, seconds)
        with self._lock:
            if not self.is_open:
                raise _gone()
            self._running += 1
        self._calls.add(call)
        Thread(target=self._run, args=(call, encoded, _copies(payloads)), daemon=True).start()
        return call

    def _run(self, call: InProcessCall, encoded: bytes, payloads: Payloads) -> None:
        outcome = self._outcome_of(call, encoded, payloads)
        with self._lock:
            self._running -= 1
            is_over = not (self.is_open or self._running)
        if is_over:
            self._table.connection_lost(self.peer)
        call.events.put(outcome)

    def _outcome_of(self, call: InProcessCall, encoded: bytes, payloads: Payloads) -> tuple[str, Any]:
        try:
            answer, beside = self._table.answer(self._table.decode(encoded), payloads, call)
            return "answer", (msgspec.msgpack.encode(answer), _copies(beside))
        except TmmuError as error:
            return "failure", error
        except Exception as error:  # noqa: BLE001 - as a server has it
            return "failure", InternalError(f"the request failed of {type(error).__name__}")

    def _end_late(self, call: InProcessCall) -> None:
        call.cancel()
        call.events.put(("failure", DeadlineExceeded("no answer in time", fix="give a later deadline")))


def _copies(payloads: Payloads) -> list[memoryview]:
    """What the other end has: bytes of its own."""
    return [memoryview(bytes(payload)) for payload in payloads]


def _gone() -> ServerGone:
    return ServerGone("the connection is closed", fix="connect again")
