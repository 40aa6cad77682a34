"""One connection of a client, as the event loop sees it: its opening, its streams, credit, and what is sent."""

import asyncio
import os
from collections.abc import Callable, Sequence
from secrets import token_bytes
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from tmmu.errors import DeadlineExceeded, KeyRefused, RequestTimeout, ServerBusy, TmmuError
from tmmu.server.logs import log_event
from tmmu.server.wire.wire_call import OutgoingMessage, WireCall
from tmmu.server.wire.wire_door import WireDoor
from tmmu.wire.envelopes import ENCODER, REQUEST, decode_body, decode_header, encode_failure, require_sizes
from tmmu.wire.frame_reader import FrameReader
from tmmu.wire.frames import CREDIT, PREAMBLE, FrameKind, FrameTagger, broken, encode_frame
from tmmu.wire.interface import Peer
from tmmu.wire.limits import CHUNK_BYTES, SMALL_FRAME
from tmmu.wire.opening import HELLO, NO_SECRET, PROOF, Ready, Transcript, Welcome, choose_version
from tmmu.wire.payloads.transfer import ReceivedPayloads, come_in_chunks

if TYPE_CHECKING:
    from collections.abc import MutableSet

_WRITE_AHEAD: Final = 1 << 20
"""Bytes of the transport's own buffer from which on nothing more is written."""

_MOST_UNTAKEN: Final = 1 << 20
"""Bytes that are sent beyond that: refusals, signs of life and credit, which a client has for the asking."""


class ServerConnection(asyncio.BufferedProtocol):
    """``connections``: the set in which the server counts who is connected, over HTTP too."""

    def __init__(self, door: WireDoor, transport: Any, connections: "MutableSet[Any]") -> None:
        self._door, self._transport, self._connections = door, transport, connections
        self._loop = asyncio.get_running_loop()
        self.peer = Peer(client="", connection=door.next_name(), limits=door.limits)
        self.is_ready = False
        self._preamble = bytearray(len(PREAMBLE))
        self._preamble_bytes = 0
        self._reader, self._tagger = FrameReader(self), FrameTagger(None)
        self._transcript: Transcript | None = None
        self._wants_tags = True
        self._calls: dict[int, WireCall] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._last_stream = 0
        self._began = self._heard = self._amid_since = monotonic()
        self._frames = self._frames_before = 0
        self._paused_since: float | None = None
        self._untaken = 0
        """Bytes that were sent since."""
        self._is_encrypted = transport.get_extra_info("sslcontext") is not None
        self._turn = Lock()
        """Of whoever gives frames their tags, and writes them in that order."""
        self._small: list[bytes | memoryview] = []
        self._small_frames = 0
        self._is_buffered = False
        """Whether the transport has bytes that its socket did not take; seen by the loop, since the transport's buffer
        is its own, and is in pieces while the loop writes it."""
        self._flushing = False
        self._is_closing = False
        connections.add(self)
        door.connections.add(self)
        door.counts.connections += 1
        transport.set_write_buffer_limits(_WRITE_AHEAD)

    # -- asyncio

    def begin(self, data: bytes) -> None:
        """Takes over a connection whose first bytes were read by somebody else."""
        self._transport.set_protocol(self)
        rest = memoryview(data)
        while rest and not self._is_closing:
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
        self._door.counts.bytes_in += nbytes
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

    def eof_received(self) -> bool:
        """The client sends no more: it is gone."""
        return False

    def pause_writing(self) -> None:
        """The client takes less than it is sent."""
        self._paused_since = monotonic()

    def resume_writing(self) -> None:
        """It took what there was."""
        self._paused_since, self._untaken = None, 0
        self._pump()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's name
        """The end: calls that are under way are cancelled."""
        with self._turn:  # whoever writes has the socket, which is closed behind this
            self._is_closing = True
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
            self._send(FrameKind.DRAIN, 0)
        self._close_when_idle()

    def abort(self) -> None:
        """Cuts the connection."""
        self._transport.abort()

    def check(self, now: float) -> None:
        """Ends what does not go on: an opening, a frame, a request, and a client that says or takes nothing."""
        settings = self._door.settings
        late = now - settings.receive_seconds
        opening_is_late = not self.is_ready and self._began < late
        frame_is_late = self._reader.is_amid_frame and self._amid_since < late
        takes_nothing = self._paused_since is not None and self._paused_since < now - settings.send_seconds
        if opening_is_late or frame_is_late or takes_nothing or self._heard < now - self._door.silence:
            self.abort()
            return
        for call in tuple(self._calls.values()):
            if call.received is not None and call.heard < late:
                fix = "send payloads at once"
                self._fail(call.stream, RequestTimeout("the payloads of a request did not go on", fix=fix))

    # -- frames

    def take_frame(self, kind: FrameKind, stream: int, body: memoryview) -> None:
        """A frame that is no chunk."""
        self._frames += 1
        self._door.counts.frames_in += 1
        if not self.is_ready:
            self._open(kind, stream, body)
        elif kind is FrameKind.REQUEST:
            self._begin_call(stream, body)
        elif kind is FrameKind.CREDIT:
            self._add_credit(stream, CREDIT.unpack(body)[0])
        elif kind is FrameKind.CANCEL:
            self._end_call(stream)
        elif kind is FrameKind.PING:
            self._send(FrameKind.PONG, stream, [bytes(body)])
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
        self._door.counts.frames_in += 1
        call = self._calls.get(stream)
        if call is None or call.received is None:
            return
        call.received.note(length)
        call.heard = monotonic()
        if call.received.is_whole:
            self._run(call, call.received)
        else:
            self._grant(call, call.received)

    # -- opening

    def _open(self, kind: FrameKind, stream: int, body: memoryview) -> None:
        if stream == 0 and kind is FrameKind.HELLO and self._transcript is None:
            self._welcome(body)
        elif stream == 0 and kind is FrameKind.PROOF and self._transcript is not None:
            self._let_in(self._transcript, decode_header(PROOF, body).proof)
        else:
            raise broken(f"{kind.name} in an opening")

    def _welcome(self, body: memoryview) -> None:
        hello = decode_header(HELLO, body)
        self._wants_tags = hello.tags or not self._is_encrypted
        welcome = Welcome(
            version=choose_version(hello.versions),
            nonce=token_bytes(32),
            limits=self._door.limits,
            heartbeat=max(int(self._door.settings.heartbeat_seconds * 1000), 1),
            tags=self._wants_tags,
            takes_keys=self._door.keys is not None,
        )
        encoded = ENCODER.encode(welcome)
        self._transcript = Transcript(body, encoded)
        self._send(FrameKind.WELCOME, 0, [encoded])

    def _let_in(self, transcript: Transcript, proof: bytes) -> None:
        keys = self._door.keys
        if keys is not None:
            client, secret = keys.client_with(lambda digest: transcript.is_proof(digest, proof))
        elif transcript.is_proof(NO_SECRET, proof):
            client, secret = "anybody", NO_SECRET
        else:
            raise KeyRefused("the proof is none", fix="connect with a client of the server's version")
        self.peer = Peer(client=client, connection=self.peer.connection, limits=self._door.limits)
        incoming, self._tagger = transcript.taggers(secret, tags=self._wants_tags)
        self._reader.open(incoming, self._door.limits.frame_bytes)
        self.is_ready = True
        self._send(FrameKind.READY, 0, [ENCODER.encode(Ready(client=client, connection=self.peer.connection))])
        log_event("wire_opened", client=client, connection=self.peer.connection)
        if self._door.is_draining:
            self.shutdown()

    # -- requests

    def _begin_call(self, stream: int, body: memoryview) -> None:
        if stream <= self._last_stream:
            raise broken("a stream that is over")
        self._last_stream = stream
        envelope, inline = decode_body(REQUEST, body, self._door.limits)
        self._door.counts.requests += 1
        try:
            self._require_room()
            require_sizes(envelope.sizes, self._door.limits)
            header = self._door.table.decode(envelope.header)
        except TmmuError as error:
            self._send_failure(stream, error)
            return
        call = self._calls[stream] = WireCall(self, stream, header, envelope.deadline / 1000, envelope.trace)
        self._timers[stream] = self._loop.call_later(envelope.deadline / 1000, self._end_late, stream)
        if come_in_chunks(envelope.sizes):
            client = self.peer.connection if self._door.keys is None else self.peer.client
            self._door.memory.reserve(call, client, sum(envelope.sizes), lambda: self._receive(call, envelope.sizes))
            return
        received = ReceivedPayloads(envelope.sizes)
        received.fill(inline)
        self._run(call, received)

    def _require_room(self) -> None:
        if self._door.is_draining:
            raise ServerBusy("the server is about to end", fix="send the request to another one")
        if len(self._calls) >= self._door.limits.streams:
            raise ServerBusy(
                f"{len(self._calls)} requests of one connection are under way, which are the most",
                fix="send the request again a little later",
            )

    def _receive(self, call: WireCall, sizes: Sequence[int]) -> None:
        """There is room for the payloads of a call."""
        call.received, call.heard = ReceivedPayloads(sizes), monotonic()
        self._reader.is_exact = True
        self._grant(call, call.received)

    def _grant(self, call: WireCall, received: ReceivedPayloads) -> None:
        credit = received.grant()
        if credit:
            self._send(FrameKind.CREDIT, call.stream, [CREDIT.pack(credit)])

    def _run(self, call: WireCall, received: ReceivedPayloads) -> None:
        """All of a request is there."""
        self._stop_receiving(call)
        try:
            self._door.run(call, received.payloads, self.send_from_thread)
        except TmmuError as error:
            self._fail(call.stream, error)

    def _stop_receiving(self, call: WireCall) -> None:
        if call.received is not None:
            call.received = None
            self._reader.is_exact = any(other.received is not None for other in self._calls.values())

    def _end_late(self, stream: int) -> None:
        self._fail(stream, DeadlineExceeded("there was no answer in time", fix="give the request a later deadline"))

    def _fail(self, stream: int, error: TmmuError) -> None:
        """Ends a call with an error, which goes first: where the server drains, the last call ends the connection.

        Nothing goes where a thread has sent the answer just now, of which the loop is about to hear.
        """
        call = self._calls[stream]
        with self._turn:
            was_answered, call.is_answered = call.is_answered, True
        if not was_answered:
            self._send_failure(stream, error)
        self._end_call(stream)

    def _end_call(self, stream: int) -> None:
        """Nobody waits for a call any more; nothing where it is over."""
        call = self._calls.pop(stream, None)
        if call is None:
            return
        self._timers.pop(stream).cancel()
        self._door.note_call(call)
        self._stop_receiving(call)
        self._door.cancel(call.end())
        if not call.is_running:  # else the door does, behind the worker thread
            self._door.memory.release(call)
        self._close_if_done()

    # -- what is sent

    def send_from_thread(
        self, call: WireCall, message: OutgoingMessage, note_end: Callable[[WireCall], object] | None = None
    ) -> None:
        """Sends a part, an answer or a failure, from any thread: at once where nothing else is due, else by the loop.

        So an answer that is short waits for no other thread; the loop is woken once, behind it. ``note_end``: called by
        the loop, before it takes the call for ended.
        """
        is_sent = False
        if message.chunks is None and not call.has_parts and not call.is_cancelled:
            with self._turn:
                if not call.is_answered:
                    is_sent = call.is_answered = self._write_now(call, message)
        self._loop.call_soon_threadsafe(self._go_on, call, None if is_sent else message, note_end)

    def _write_now(self, call: WireCall, message: OutgoingMessage) -> bool:
        """Writes a frame to the socket itself, where nothing waits to be written; with the turn. What the socket does
        not take goes first of what the loop writes.
        """
        if self._small or self._is_closing or self._is_encrypted or self._is_buffered:
            return False
        data = b"".join(encode_frame(self._tagger, message.kind, call.stream, message.body))
        self._door.counts.note_frame(len(data))
        self._door.counts.writes += 1
        try:
            count = os.write(self._transport.get_extra_info("socket").fileno(), data)
        except BlockingIOError:
            count = 0
        except OSError:  # the client is gone, of which the loop hears
            return True
        if count < len(data):
            self._small.append(data[count:])
            self._loop.call_soon_threadsafe(self._flush)
        return True

    def _go_on(
        self, call: WireCall, message: OutgoingMessage | None, note_end: Callable[[WireCall], object] | None
    ) -> None:
        """What the loop does of ``send_from_thread``, with the message if it is not sent yet."""
        if note_end is not None:
            note_end(call)
        if message is not None:
            self.deliver(call, message)
        elif self._calls.get(call.stream) is call:
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
        while progress and self._paused_since is None:
            progress = sum(self._pump_call(call) for call in tuple(self._calls.values()))

    def _pump_call(self, call: WireCall) -> bool:
        """Sends what of a call may be sent, at most one chunk; whether that was something."""
        if self._paused_since is not None or self._is_closing:
            return False
        chunk = None if call.sending is None else call.sending.next_chunk(CHUNK_BYTES)
        if chunk is not None:
            self._send(FrameKind.CHUNK, call.stream, [chunk])
        elif call.sending is None and call.outbox:
            message = call.outbox[0]
            self._send(message.kind, call.stream, message.body)
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
        self._send(FrameKind.FAILURE, stream, self._door.failure_message(error).body)

    def _send(self, kind: FrameKind, stream: int, parts: Sequence[bytes | memoryview] = (b"",)) -> None:
        """Sends a frame; small ones that are due together go together."""
        with self._turn:
            if not self._is_closing:
                self._write(kind, stream, parts)

    def _write(self, kind: FrameKind, stream: int, parts: Sequence[bytes | memoryview]) -> None:
        frame = encode_frame(self._tagger, kind, stream, parts)
        size = sum(map(len, frame))
        self._door.counts.note_frame(size)
        if self._paused_since is not None:
            self._untaken += size
            if self._untaken > _MOST_UNTAKEN:
                self._is_closing = True
                self._transport.abort()
                return
        self._small_frames += 1
        if size > SMALL_FRAME:
            self._small.append(frame[0])
            self._write_small()
            for part in frame[1:-1]:
                self._put(part)
            self._door.counts.writes += len(frame) - 2
            frame = frame[-1:]
        self._small += frame
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        with self._turn:
            self._write_small()

    def _write_small(self) -> None:
        """Writes what waits, in one piece; with the turn."""
        self._flushing = False
        if self._small and not self._is_closing:
            self._door.counts.writes += 1
            self._door.counts.joined_frames += self._small_frames if self._small_frames > 1 else 0
            self._put(b"".join(self._small))
        self._small, self._small_frames = [], 0

    def _put(self, data: bytes | memoryview) -> None:
        """Gives bytes to the transport; by the loop, with the turn."""
        self._transport.write(data)
        self._is_buffered = self._transport.get_write_buffer_size() > 0

    # -- the end

    def _refuse(self, error: TmmuError) -> None:
        """Says why, and closes the connection: what follows cannot be read."""
        self._door.counts.note_refusal(error.code)
        self._send(FrameKind.FAILURE, 0, [encode_failure(error)])
        self._flush()
        self._is_closing = True
        log_event("wire_refused", client=self.peer.client, connection=self.peer.connection, code=error.code)
        self._transport.close()

    def _close_when_idle(self) -> None:
        self._close_if_done(is_ending=True)

    def _close_if_done(self, *, is_ending: bool = False) -> None:
        if (is_ending or self._door.is_draining) and not self._calls and not self._is_closing:
            self._flush()
            self._is_closing = True
            self._transport.close()
