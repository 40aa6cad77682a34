"""What all connections of a server over the wire share: services, threads, memory, limits, and who looks after them."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from secrets import token_hex
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tmmu.errors import InternalError, ServerBusy, TmmuError
from tmmu.server.keys import KeyRing
from tmmu.server.logs import LOGGER, log_event
from tmmu.server.settings import ServerSettings
from tmmu.server.spans import log_spans
from tmmu.server.wire.connection.thread_stay import LONGEST_SECONDS, ThreadStay
from tmmu.server.wire.connection.wire_counts import WireCounts
from tmmu.server.wire.receive_memory import ReceiveMemory
from tmmu.server.wire.wire_call import OutgoingMessage, WireCall, outgoing
from tmmu.server.wire.worker_threads import WorkerThreads
from tmmu.wire.envelopes import encode_failure
from tmmu.wire.frames import FrameKind
from tmmu.wire.interface import Payloads, Peer, WireService
from tmmu.wire.limits import WireLimits
from tmmu.wire.service_table import ServiceTable
from tmmu.wire.stages import ServerStage, encode_stages
from tmmu.wire.trace_context import continue_trace

if TYPE_CHECKING:
    from tmmu.server.wire.server_connection import ServerConnection

SendFromThread: TypeAlias = Callable[[WireCall, OutgoingMessage], object]
_CANCEL_THREADS: Final = 2
_SILENT_BEATS: Final = 3
"""Heartbeats after which an end that says nothing is gone."""


class WireDoor:
    """Made before the event loop runs; ``start`` and what connections call belongs to that.

    ``on_second``: called about once a second, on a thread that may wait. ``on_end``: told of each call that has ended
    how long it was in its stages.
    """

    def __init__(
        self,
        services: Sequence[WireService],
        settings: ServerSettings,
        keys: KeyRing | None,
        *,
        on_second: Callable[[], object] = lambda: None,
        on_end: Callable[[Mapping[ServerStage, float]], object] = lambda _: None,
    ) -> None:
        self._on_second, self._on_end = on_second, on_end
        self.table, self.settings, self.keys = ServiceTable(services), settings, keys
        self.limits = WireLimits(payload_bytes=settings.payload_bytes)
        self.memory = ReceiveMemory(max(settings.receive_memory, settings.payload_bytes))
        self.counts = WireCounts()
        self.connections: set[ServerConnection] = set()
        self.is_draining = False
        self._counting = Lock()
        self.running = 0
        """Calls on worker threads; with the lock."""
        self._running_of = Counter[str]()
        """The same by connection, of those that have any; with the lock."""
        self._lost: dict[str, Peer] = {}
        """Connections that are over, and have calls on worker threads yet; with the lock."""
        self._numbers, self._name = count(1), token_hex(8)
        self._workers = WorkerThreads(settings.max_requests, "tmmu-wire")
        self._cancels = WorkerThreads(_CANCEL_THREADS, "tmmu-wire-cancel")
        self._stays = set[ThreadStay]()
        """Connections with which threads stay, or did a moment ago."""
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def silence(self) -> float:
        """Seconds after which an end of which nothing is heard is gone."""
        return _SILENT_BEATS * self.settings.heartbeat_seconds

    def start(self) -> None:
        """Begins to look after connections."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._sweep()), loop.create_task(self._tick())]

    def next_name(self) -> str:
        """A name for a connection, which no other one has, of no server."""
        return f"{self._name}-{next(self._numbers)}"

    def run(self, call: WireCall, payloads: Payloads, send: SendFromThread, stay: ThreadStay | None = None) -> None:
        """Answers a call on a worker thread, which calls ``send``. ``SERVER_BUSY`` where as many run as may.

        ``stay``: with which the thread is to stay, where enough others have nothing to do.
        """
        self.begin(call)
        if stay is not None and self._workers.has_spare:
            stay.begin(call)
            if not self._stays:
                asyncio.get_running_loop().call_later(LONGEST_SECONDS, self._look_at_stays)
            self._stays.add(stay)
        self._workers.submit(partial(self._work, call, payloads, send))

    def begin(self, call: WireCall) -> None:
        """A call is about to run. ``SERVER_BUSY`` where as many do as may."""
        with self._counting:
            running = self.running
            if running < self.settings.max_requests:
                self.running += 1
                self._running_of[call.peer.connection] += 1
        if running >= self.settings.max_requests:
            fix = "send the request again a little later"
            raise ServerBusy(f"{running} requests are under way, which are the most", fix=fix)
        call.is_running = True
        call.stages.enter("queue")

    def _work(self, call: WireCall, payloads: Payloads, send: SendFromThread) -> None:
        """Answers a call, and those for which its thread stays."""
        following: tuple[WireCall, Payloads] | None = (call, payloads)
        del payloads  # while a thread waits for the next call it has none of the last one
        try:
            while following is not None:
                call = following[0]
                self._answer_call(*following, send)
                following = None
                following = call.next_call()
        except Exception as error:  # noqa: BLE001 - of what counts calls; the thread has others to answer
            if not isinstance(error, RuntimeError):  # the loop is over, and nobody waits
                log_event("request_failed", level=logging.ERROR, failure=error)
            with suppress(RuntimeError):
                call.leave()

    def _answer_call(self, call: WireCall, payloads: Payloads, send: SendFromThread) -> None:
        call.stages.enter("execute")
        message = self._answer(call, payloads)
        self._note_end(call.peer.connection)  # before the answer goes: who has it may send the next request
        call.stages.enter("result")
        send(call, message)

    def _look_at_stays(self) -> None:
        now = monotonic()
        self._stays = {stay for stay in self._stays if stay.take_back(now)}
        if self._stays:
            asyncio.get_running_loop().call_later(LONGEST_SECONDS, self._look_at_stays)

    def _note_end(self, connection: str) -> None:
        """A call of a connection runs no more; services are told of a lost one behind its last."""
        with self._counting:
            self.running -= 1
            self._running_of[connection] -= 1
            if self._running_of[connection]:
                return
            del self._running_of[connection]
            lost = self._lost.pop(connection, None)
        self._tell_services(lost)

    def _answer(self, call: WireCall, payloads: Payloads) -> OutgoingMessage:
        try:
            header, beside = self.table.answer(call.header, payloads, call)
            return outgoing(FrameKind.ANSWER, header, beside, self._stages_to_tell(call))
        except BaseException as error:  # noqa: BLE001 - one call that fails is not the server, nor one of its threads
            return self.failure_message(error)

    @staticmethod
    def _stages_to_tell(call: WireCall) -> Sequence[int]:
        if not call.tells_stages:
            return ()
        call.stages.enter("result")
        return encode_stages(call.stages.seconds)

    def failure_message(self, error: BaseException) -> OutgoingMessage:
        """What a client is told of an error; of a defect only that it is one, and the log has its traceback."""
        if not isinstance(error, TmmuError):
            log_event("request_failed", level=logging.ERROR, failure=error)
            error = InternalError(f"the request failed of {type(error).__name__}", fix="the server's log has more")
        try:
            body = encode_failure(error)
        except Exception as defect:  # noqa: BLE001 - a field that does not travel, whatever encoding says of it
            return self.failure_message(defect)
        self.counts.note_refusal(error.code)
        return OutgoingMessage(FrameKind.FAILURE, [body], None)

    def cancel(self, callbacks: Sequence[Callable[[], object]]) -> None:
        """Calls what is to be called when a call is cancelled, on a thread that may wait."""
        if callbacks:
            self._cancels.submit(lambda: _call_all(callbacks))

    def note_call(self, call: WireCall) -> None:
        """The end of a call: in the metrics, and in the log where that has such lines."""
        seconds = call.stages.end()
        self._on_end(call.stages.seconds)
        if LOGGER.isEnabledFor(logging.DEBUG):
            trace, stages = continue_trace(call.trace), call.stages.seconds
            log_spans(trace, stages)
            log_event(
                "wire_request",
                level=logging.DEBUG,
                client=call.peer.client,
                connection=call.peer.connection,
                request=str(type(call.header).__struct_config__.tag),
                seconds=round(seconds, 6),
                trace=trace.trace,
                span=trace.span,
                parent=trace.parent,
                stages={stage: round(each, 6) for stage, each in stages.items()},
            )

    def connection_lost(self, connection: "ServerConnection") -> None:
        """Forgets a connection; services are told on a worker thread, once none of its calls runs there any more: what
        they found or made for it would stay.
        """
        self.connections.discard(connection)
        if not connection.is_ready:
            return
        with self._counting:
            is_running = connection.peer.connection in self._running_of
            if is_running:
                self._lost[connection.peer.connection] = connection.peer
        if not is_running:
            self._tell_services(connection.peer)

    def _tell_services(self, peer: Peer | None) -> None:
        if peer is not None:
            self._cancels.submit(lambda: _call_all([lambda: self.table.connection_lost(peer)]))

    async def _sweep(self) -> None:
        seconds = min(self.settings.heartbeat_seconds, self.settings.receive_seconds, self.settings.send_seconds) / 4
        while True:
            await asyncio.sleep(min(seconds, 1.0))
            now = monotonic()
            _call_all([partial(connection.check, now) for connection in tuple(self.connections)])

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(1)
            await asyncio.to_thread(_call_all, [self._on_second])

    def close(self) -> None:
        """Ends the threads, once what they do is done; connections are over by then. From any thread."""
        self._workers.close()
        self._cancels.close()

    def stop(self) -> None:
        """Cuts what is still connected; the event loop ends."""
        for task in self._tasks:
            task.cancel()
        for connection in tuple(self.connections):
            connection.abort()


def _call_all(callbacks: Sequence[Callable[[], Any]]) -> None:
    for callback in callbacks:
        try:
            callback()
        except Exception as error:  # noqa: BLE001 - the others are called too
            log_event("request_failed", level=logging.ERROR, failure=error)
