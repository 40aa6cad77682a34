"""One connection of a client, as the event loop sees it: its opening, its streams, credit, and what is sent."""

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

from tmmu.errors import DeadlineExceeded, RequestTimeout, ServerBusy, TmmuError
from tmmu.server.logs import log_event
from tmmu.server.wire.connection.deadline_timer import DeadlineTimer
from tmmu.server.wire.connection.frame_writer import FrameWriter
from tmmu.server.wire.connection.server_opening import ServerOpening
from tmmu.server.wire.connection.thread_stay import ThreadStay
from tmmu.server.wire.wire_call import OutgoingMessage, WireCall
from tmmu.server.wire.wire_door import WireDoor
from tmmu.wire.envelopes import (
    ENCODER,
    REQUEST,
    RequestEnvelope,
    decode_body,
    encode_failure,
    require_sizes,
)
from tmmu.wire.frame_reader import FrameReader
from tmmu.wire.frames import CREDIT, PREAMBLE, FrameKind, broken
from tmmu.wire.interface import Payloads, Peer
from tmmu.wire.limits import CHUNK_BYTES
from tmmu.wire.opening import STAGES_VERSION, Ready
from tmmu.wire.payloads.transfer import ReceivedPayloads, come_in_chunks, received_inline

if TYPE_CHECKING:
    from collections.abc import MutableSet


class ServerConnection(asyncio.BufferedProtocol):
    """``connections``: the set in which the server counts who is connected, over HTTP too."""

    def __init__(self, door: WireDoor, transport: Any, connections: "MutableSet[Any]") -> None:
        self._door, self._transport, self._connections = door, transport, connections
        self._loop = asyncio.get_running_loop()
        self.peer = Peer(client="", connection=door.next_name(), limits=door.limits)
        self.is_ready = False
        self._preamble = bytearray(len(PREAMBLE))
        self._preamble_bytes = 0
        self._reader, self.writer = FrameReader(self), FrameWriter(transport, door.counts)
        self._stay = ThreadStay(transport, self._reader, self.writer)
        self._to_stay: tuple[WireCall, Payloads] | None = None
        """A call that is to run, and whose thread is to stay, once the loop is done with the reader."""
        self._opening = ServerOpening(
            door.limits,
            door.keys,
            heartbeat=door.settings.heartbeat_seconds,
            is_encrypted=self.writer.is_encrypted,
        )
        self._calls: dict[int, WireCall] = {}
        """Whoever takes one out ends it: the event loop, or the thread that has sent its answer."""
        self._deadlines = DeadlineTimer(self.end_late)
        self._last_stream = 0
        self._began = self._heard = self._amid_since = monotonic()
        self._frames = self._frames_before = 0
        connections.add(self)
        door.connections.add(self)
        door.counts.note_connection()

    # -- asyncio

    def begin(self, data: bytes) -> None:
        """Takes over a connection whose first bytes were read by somebody else."""
        self._transport.set_protocol(self)
        rest = memoryview(data)
        while rest and not self.writer.is_closing:
            place = self.get_buffer(-1)
            size = min(len(place), len(rest))
            place[:size] = rest[:size]
            self.buffer_updated(size)
            rest = rest[size:]

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's name
        """Where the next bytes go."""
        if self._preamble_bytes < len(PREAMBLE):
            return memoryview(self._preamble)[self._preamble_bytes :]
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes came."""
        self._heard = monotonic()
        self._door.counts.note_received(size=nbytes)
        was_amid = self._reader.is_amid_frame
        try:
            if self._preamble_bytes < len(PREAMBLE):
                self._preamble_bytes += nbytes
                if not PREAMBLE.startswith(self._preamble[: self._preamble_bytes]):
                    raise broken("another beginning")
                return
            self._reader.advance(nbytes)
        except TmmuError as error:
            self._refuse(error)
        if not was_amid or self._frames != self._frames_before:
            self._frames_before, self._amid_since = self._frames, self._heard
        if self._to_stay is not None:  # last: its thread may be done before this goes on, and reads then
            (call, payloads), self._to_stay = self._to_stay, None
            self._start(call, payloads, self._stay)

    def eof_received(self) -> bool:
        """The client sends no more: it is gone."""
        return False

    def pause_writing(self) -> None:
        """The client takes less than it is sent."""
        self.writer.pause()

    def resume_writing(self) -> None:
        """It took what there was."""
        self.writer.resume()
        self._pump()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's name
        """The end: calls that are under way are cancelled."""
        self.writer.stop()  # whoever writes has the socket, which is closed behind this
        self._deadlines.stop()
        self._connections.discard(self)  # first: asyncio tells of an end once, whatever becomes of the calls
        try:
            for stream in tuple(self._calls):
                self._end_call(stream)
        finally:
            self._door.connection_lost(self)
        log_event("wire_closed", client=self.peer.client, connection=self.peer.connection, streams=self._last_stream)

    def shutdown(self) -> None:
        """The server is to end: no more requests; the connection is closed once nothing is under way."""
        if self.is_ready:
            self.writer.send(FrameKind.DRAIN, 0)
        self._close_if_done()

    def abort(self) -> None:
        """Cuts the connection."""
        self._transport.abort()

    def check(self, now: float) -> None:
        """Ends what does not go on: an opening, a frame, a request, and a client that says or takes nothing."""
        settings = self._door.settings
        late = now - settings.receive_seconds
        opening_is_late = not self.is_ready and self._began < late
        frame_is_late = self._reader.is_amid_frame and self._amid_since < late
        paused_since = self.writer.paused_since
        takes_nothing = paused_since is not None and paused_since < now - settings.send_seconds
        if opening_is_late or frame_is_late or takes_nothing or self._heard < now - self._door.silence:
            self.abort()
            return
        for call in tuple(self._calls.values()):
            if call.received is not None and call.heard < late:
                fix = "send payloads at once"
                self._fail(call, RequestTimeout("the payloads of a request did not go on", fix=fix))

    # -- frames

    def take_frame(self, kind: FrameKind, stream: int, body: memoryview) -> None:
        """A frame that is no chunk."""
        self._frames += 1
        self._door.counts.note_received(frames=1)
        if not self.is_ready:
            self._open(kind, stream, body)
        elif kind is FrameKind.REQUEST:
            self._begin_call(stream, body)
        elif kind is FrameKind.CREDIT:
            self._add_credit(stream, CREDIT.unpack(body)[0])
        elif kind is FrameKind.CANCEL:
            self._end_call(stream)
        elif kind is FrameKind.PING:
            self.writer.send(FrameKind.PONG, stream, [bytes(body)])
        else:
            raise broken(f"{kind.name} of a client")

    def place_of_chunk(self, stream: int, length: int) -> memoryview | None:
        """Where a chunk goes."""
        call = self._calls.get(stream)
        if call is None:
            if stream > self._last_stream:
                raise broken("a chunk of no request")
            return None
        if call.received is None:
            raise broken("a chunk of a request that is whole")
        return call.received.place(length)

    def take_chunk(self, stream: int, length: int) -> None:
        """A chunk is there; runs the request where it was the last."""
        self._frames += 1
        self._door.counts.note_received(frames=1)
        call = self._calls.get(stream)
        if call is None or call.received is None:
            return
        call.received.note(length)
        call.heard = monotonic()
        if call.received.is_whole:
            self._run(call, call.received)
        else:
            self._grant(call, call.received)

    def _open(self, kind: FrameKind, stream: int, body: memoryview) -> None:
        self._opening.require(kind, stream)
        if kind is FrameKind.HELLO:
            self.writer.send(FrameKind.WELCOME, 0, [self._opening.welcome(body)])
            return
        client, incoming, self.writer.tagger = self._opening.let_in(body)
        self.peer = Peer(client=client, connection=self.peer.connection, limits=self._door.limits)
        self._reader.open(incoming, self._door.limits.frame_bytes)
        self.is_ready = True
        self.writer.send(FrameKind.READY, 0, [ENCODER.encode(Ready(client=client, connection=self.peer.connection))])
        log_event("wire_opened", client=client, connection=self.peer.connection)
        if self._door.is_draining:
            self.shutdown()

    # -- requests

    def _begin_call(self, stream: int, body: memoryview) -> None:
        self._begin_decoded(stream, *self._decode_request(stream, body))

    def _decode_request(self, stream: int, body: memoryview) -> tuple[RequestEnvelope, memoryview]:
        if stream <= self._last_stream:
            raise broken("a stream that is over")
        self._last_stream = stream
        request: tuple[RequestEnvelope, memoryview] = decode_body(REQUEST, body, self._door.limits)
        self._door.counts.note_request()
        return request

    def _begin_decoded(self, stream: int, envelope: RequestEnvelope, inline: memoryview) -> None:
        try:
            call = self._calls[stream] = self._make_call(stream, envelope)
        except TmmuError as error:
            self._send_failure(stream, error)
            return
        self._deadlines.note(call.deadline)
        if come_in_chunks(envelope.sizes):
            call.has_memory = True
            client = self.peer.connection if self._door.keys is None else self.peer.client
            self._door.memory.reserve(call, client, sum(envelope.sizes), lambda: self._receive(call, envelope.sizes))
            return
        self._run(call, received_inline(envelope.sizes, inline))

    def _make_call(self, stream: int, envelope: RequestEnvelope) -> WireCall:
        """The call of a request, not among the others yet; the error that it is answered with."""
        self._require_room()
        require_sizes(envelope.sizes, self._door.limits)
        header = self._door.table.decode(envelope.header)
        call = WireCall(self, stream, header, envelope.deadline / 1000, envelope.trace)
        call.tells_stages = bool(envelope.trace) and self._opening.version >= STAGES_VERSION
        return call

    # -- by a thread that stays

    def next_call(self, before: WireCall) -> tuple[WireCall, Payloads] | None:
        """The next call, by the thread that has answered ``before``, where it stays and one comes."""
        count = self._stay.receive(before)
        if count is None:
            return None
        try:
            request = self._reader.take_request(count) if count else None
            if request is not None:
                return self._begin_in_thread(before, count, *request)
            if count:
                self.leave(before, self.buffer_updated, count)
            else:
                self.leave(before)
        except TmmuError as error:
            self.leave(before, self._refuse, error)
        return None

    def _begin_in_thread(
        self, before: WireCall, count: int, stream: int, body: memoryview
    ) -> tuple[WireCall, Payloads] | None:
        self._heard = monotonic()
        self._frames += 1
        self._door.counts.note_received(size=count, frames=1)
        envelope, inline = self._decode_request(stream, body)
        if come_in_chunks(envelope.sizes):
            self.leave(before, self._begin_decoded, stream, envelope, inline)
            return None
        try:
            call = self._make_call(stream, envelope)
        except TmmuError as error:
            self.leave(before, self._send_failure, stream, error)
            return None
        payloads = received_inline(envelope.sizes, inline).payloads
        try:
            if self._go_on_staying(call):
                return call, payloads
            self.leave(before)
        except TmmuError as error:
            self.leave(before, self._fail, call, error)
        return None

    def _go_on_staying(self, call: WireCall) -> bool:
        """Has the thread that stays answer ``call`` next; ``False`` where the connection is about to end.

        With the turn, so that the loop finds it among the calls that it ends, or here that there are none any more.
        """
        with self.writer.turn:
            if self.writer.is_closing:
                return False
            self._calls[call.stream] = call
            if self._deadlines.is_before(call.deadline):  # looked at behind: the timer has the calls that there are
                self._loop.call_soon_threadsafe(self._deadlines.note, call.deadline)
            self._door.begin(call)
            self._stay.go_on(call)
            return True

    def leave(self, call: WireCall, function: Callable[..., object] | None = None, *arguments: object) -> None:
        """Has the loop call a function, if there is one, and read again, where the thread of a call has stayed."""
        if self._stay.leave(call):
            self._loop.call_soon_threadsafe(self._resume, function, arguments)

    def _resume(self, function: Callable[..., object] | None, arguments: Sequence[object]) -> None:
        if self.writer.is_closing:  # its calls are over, or about to be: none may begin
            return
        self._transport.resume_reading()  # first: of what came a thread may stay, while nobody else is to read
        if function is not None:
            function(*arguments)

    def _require_room(self) -> None:
        if self._door.is_draining:
            raise ServerBusy("the server is about to end", fix="send the request to another one")
        if len(self._calls) >= self._door.limits.streams and self._unanswered() >= self._door.limits.streams:
            raise ServerBusy(
                f"{len(self._calls)} requests of one connection are under way, which are the most",
                fix="send the request again a little later",
            )

    def _unanswered(self) -> int:
        """Calls that count: a client that has an answer may send the next request before the call is ended here."""
        with self.writer.turn:
            return sum(not call.is_answered for call in tuple(self._calls.values()))

    def _receive(self, call: WireCall, sizes: Sequence[int]) -> None:
        """There is room for the payloads of a call."""
        call.received, call.heard = ReceivedPayloads(sizes), monotonic()
        self._reader.is_exact = True
        self._grant(call, call.received)

    def _grant(self, call: WireCall, received: ReceivedPayloads) -> None:
        credit = received.grant()
        if credit:
            self.writer.send(FrameKind.CREDIT, call.stream, [CREDIT.pack(credit)])

    def _run(self, call: WireCall, received: ReceivedPayloads) -> None:
        """All of a request is there."""
        self._stop_receiving(call)
        may_stay = len(self._calls) == 1 and self._stay.is_due(self._heard) and not call.has_memory
        is_plain = not (self._reader.is_amid_frame or self.writer.is_encrypted or self._door.is_draining)
        if may_stay and is_plain:
            self._to_stay = call, received.payloads
        else:
            self._start(call, received.payloads)

    def _start(self, call: WireCall, payloads: Payloads, stay: ThreadStay | None = None) -> None:
        try:
            self._door.run(call, payloads, self.send_from_thread, stay)
        except TmmuError as error:
            self._fail(call, error)

    def _stop_receiving(self, call: WireCall) -> None:
        if call.received is not None:
            call.received = None
            self._reader.is_exact = any(other.received is not None for other in self._calls.values())

    def end_late(self, now: float) -> float | None:
        """Ends calls whose deadline is over; returns the next deadline, if there is one."""
        for call in tuple(self._calls.values()):
            if call.deadline <= now:
                fix = "give the request a later deadline"
                self._fail(call, DeadlineExceeded("there was no answer in time", fix=fix))
        return min((call.deadline for call in tuple(self._calls.values())), default=None)

    def _fail(self, call: WireCall, error: TmmuError) -> None:
        """Ends a call with an error, which goes first: where the server drains, the last call ends the connection.

        Nothing goes where a thread has sent the answer just now, which is about to end the call.
        """
        with self.writer.turn:
            was_answered, call.is_answered = call.is_answered, True
        if not was_answered:
            self._send_failure(call.stream, error)
        self._end_call(call.stream)

    def _end_call(self, stream: int) -> None:
        """Nobody waits for a call any more; nothing where it is over. For any thread, where the call has no memory."""
        call = self._calls.pop(stream, None)
        if call is None:
            return
        self._door.note_call(call)
        if call.has_memory:
            self._stop_receiving(call)
        self._door.cancel(call.end())
        if call.has_memory and not call.is_running:  # else behind the worker thread
            self._door.memory.release(call)
        if self._door.is_draining:  # looked at behind the call's end, as calls are behind the drain's beginning
            self._loop.call_soon_threadsafe(self._close_if_done)

    # -- what is sent

    def send_from_thread(self, call: WireCall, message: OutgoingMessage) -> None:
        """Sends a part, an answer or a failure, from any thread: at once where nothing else is due, else by the loop.

        So an answer that is short waits for no other thread, and wakes none: the call ends here.
        """
        is_sent = False
        if self._stay.has_more(call):
            self.leave(call)
        if message.chunks is None and not call.has_parts and not call.is_cancelled:
            with self.writer.turn:
                if not call.is_answered:
                    is_sent = call.is_answered = self.writer.write_now(message.kind, call.stream, message.body)
        if is_sent and not call.has_memory:
            self._stay.note_answer()
            self._end_call(call.stream)
        else:
            self._loop.call_soon_threadsafe(self._go_on, call, None if is_sent else message)

    def _go_on(self, call: WireCall, message: OutgoingMessage | None) -> None:
        """What the loop does of ``send_from_thread``, with the message if it is not sent yet."""
        if message is None or message.kind is not FrameKind.PART:
            call.is_running = False
            if call.has_memory and call.is_cancelled:
                self._door.memory.release(call)
        if message is not None:
            self.deliver(call, message)
        else:
            self._end_call(call.stream)

    def deliver(self, call: WireCall, message: OutgoingMessage) -> None:
        """Sends a part, an answer or a failure, where somebody waits for it still."""
        if self._calls.get(call.stream) is not call:
            return
        call.outbox.append(message)
        self._pump_call(call)

    def _pump(self) -> None:
        """Sends what waits, a chunk of each call by turns."""
        progress = 1
        while progress and self.writer.paused_since is None:
            progress = sum(self._pump_call(call) for call in tuple(self._calls.values()))

    def _pump_call(self, call: WireCall) -> bool:
        """Sends what of a call may be sent, at most one chunk; whether that was something."""
        if self.writer.paused_since is not None or self.writer.is_closing:
            return False
        chunk = None if call.sending is None else call.sending.next_chunk(CHUNK_BYTES)
        if chunk is not None:
            self.writer.send(FrameKind.CHUNK, call.stream, [chunk])
        elif call.sending is None and call.outbox:
            message = call.outbox[0]
            self.writer.send(message.kind, call.stream, message.body)
            call.sending = message.chunks
        else:
            return False
        if call.sending is None or call.sending.is_sent:
            call.sending = None
            self._note_sent(call, call.outbox.popleft())
        return True

    def _note_sent(self, call: WireCall, message: OutgoingMessage) -> None:
        call.note_sent(message)
        if message.kind is not FrameKind.PART:
            self._end_call(call.stream)

    def _add_credit(self, stream: int, credit: int) -> None:
        call = self._calls.get(stream)
        if call is not None and call.sending is not None:
            call.sending.add_credit(credit)
            self._pump()

    def _send_failure(self, stream: int, error: TmmuError) -> None:
        self.writer.send(FrameKind.FAILURE, stream, self._door.failure_message(error).body)

    # -- the end

    def _refuse(self, error: TmmuError) -> None:
        """Says why, and closes the connection: what follows cannot be read."""
        self._door.counts.note_refusal(error.code)
        self.writer.send(FrameKind.FAILURE, 0, [encode_failure(error)])
        self.writer.close()
        log_event("wire_refused", client=self.peer.client, connection=self.peer.connection, code=error.code)

    def _close_if_done(self) -> None:
        """Where the server is to end, and nothing is under way."""
        self.writer.close(lambda: not self._calls and not self.writer.is_closing)
