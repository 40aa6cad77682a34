"""A connection to a server, shared by threads, over blocking waits of their own.

A thread that waits for its answer, and finds nobody receiving, receives for all until its own answer is there; so one
thread alone hands nothing over. A second thread of the connection looks in once a second: it sends what was posted, and
signs of life, and receives where nobody else does.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Condition, Event, Lock, Thread, current_thread
from time import monotonic
from typing import Any, Final

from tmmu.client.answer_stream import AnswerStream
from tmmu.client.client_opening import ClientOpening
from tmmu.client.exchange import Exchange
from tmmu.client.forks import leave_to_parent
from tmmu.client.request_trace import begin_span
from tmmu.client.transport import Transport
from tmmu.errors import DeadlineExceeded, InvalidConfig, RequestTooLarge, ServerGone, TmmuError
from tmmu.wire.envelopes import (
    ANSWER,
    decode_body,
    decode_failure,
    encode_request,
    require_sizes,
)
from tmmu.wire.frame_reader import FrameReader
from tmmu.wire.frames import CREDIT, NUMBER, PREAMBLE, FrameKind, FrameTagger, broken, encode_frame
from tmmu.wire.interface import Message, Payloads, RequestHeader
from tmmu.wire.limits import CHUNK_BYTES, MOST_SECONDS, WireLimits
from tmmu.wire.payloads.transfer import SentPayloads, come_in_chunks

_LOOK_SECONDS: Final = 1.0
_SILENT_BEATS: Final = 3
_POST_SECONDS: Final = 60.0
OWN_LIMITS: Final = WireLimits(header_bytes=64 << 20, payload_bytes=1 << 40)
"""What a client takes of a server that it trusts."""


class ClientConnection:
    """Opens over a transport; ``KEY_REFUSED``, ``WIRE_BROKEN``, ``SERVER_GONE`` or ``DEADLINE_EXCEEDED`` if it cannot.

    ``deadline``: seconds of the opening, and of requests that name none.
    """

    def __init__(self, transport: Transport, key: str | None, *, deadline: float) -> None:
        self._transport, self._deadline = transport, deadline
        self._opening = ClientOpening(key, is_encrypted=transport.is_encrypted)
        self._reader, self._tagger = FrameReader(self), FrameTagger(None)
        self._sending, self._changed = Lock(), Condition()
        self._exchanges: dict[int, Exchange] = {}
        self._posts, self._abandoned = deque[RequestHeader](), deque[Exchange]()
        self._last_stream = 0
        self._has_reader = False
        self._waiting = 0
        """Threads that wait for another one to receive; with the lock of ``_changed``."""
        self._failure: TmmuError | None = None
        self._heard = self._spoke = monotonic()
        self.is_draining = False
        """Whether the server takes no more requests."""
        self._over = Event()
        leave_to_parent(self)
        self._open(monotonic() + deadline)
        self._keeper = Thread(target=self._look_after, name="tmmu-wire", daemon=True)
        self._keeper.start()

    @property
    def limits(self) -> WireLimits:
        """What the server takes."""
        assert self._opening.welcome is not None
        return self._opening.welcome.limits

    @property
    def client(self) -> str:
        """The name that the server has for the key."""
        assert self._opening.ready is not None
        return self._opening.ready.client

    @property
    def is_open(self) -> bool:
        """Whether requests may be sent."""
        return self._failure is None

    # -- requests

    def request(self, header: RequestHeader, payloads: Payloads = (), *, deadline: float | None = None) -> Message:
        """As ``Connection.request``."""
        until = self._until(deadline)
        exchange = self._start(header, payloads, until)
        answer: Message | None = None
        try:
            while (arrival := self.next_arrival(exchange, until)) is not None:
                answer = arrival
                if exchange.is_over and not exchange.arrivals:
                    break
        finally:
            self.end(exchange)
        assert answer is not None
        return answer

    def stream(self, header: RequestHeader, payloads: Payloads = (), *, deadline: float | None = None) -> AnswerStream:
        """As ``Connection.stream``."""
        until = self._until(deadline)
        return AnswerStream(self, self._start(header, payloads, until), until)

    def _until(self, deadline: float | None) -> float:
        if deadline is None:
            return monotonic() + self._deadline
        if not (isinstance(deadline, (int, float)) and deadline >= 0):  # nan is not either
            raise InvalidConfig(f"a deadline of {deadline!r:.40}", fix="give seconds, 0 or more")
        return monotonic() + min(deadline, MOST_SECONDS)

    def _start(self, header: RequestHeader, payloads: Payloads, until: float) -> Exchange:
        """A request that is sent, with its payloads."""
        exchange = self._begin(header, payloads, until)
        if exchange.chunks is not None:
            try:
                self._send_chunks(exchange, exchange.chunks, until)
            except BaseException:
                self.end(exchange)
                raise
        return exchange

    def next_arrival(self, exchange: Exchange, until: float) -> Message | None:
        """The next part or answer of a request; ``None`` behind the last. Raises what it failed of."""
        try:
            self._wait(lambda: exchange.arrivals or exchange.is_over, until)
        except TmmuError as error:
            exchange.end_span(error.code)
            raise
        if not exchange.arrivals:
            return None
        arrival = exchange.arrivals.popleft()
        if isinstance(arrival, TmmuError):
            raise arrival
        return arrival

    def post(self, header: RequestHeader) -> None:
        """As ``Connection.post``. Takes no lock: destructors call it."""
        self._posts.append(header)

    def abandon(self, exchange: Exchange) -> None:
        """Nobody waits for a request any more; the server is told within a second. Takes no lock, as ``post``."""
        self._abandoned.append(exchange)

    def close(self) -> None:
        """As ``Connection.close``; what was posted goes first, where no other thread sends."""
        with suppress(TmmuError):
            self._speak(monotonic(), _LOOK_SECONDS)
        self._break(ServerGone("the connection is closed", fix="connect again"))
        if current_thread() is not self._keeper:
            self._keeper.join()

    def leave_to_parent(self) -> None:
        """As ``Forked.leave_to_parent``: it is over here, and goes on there."""
        self._sending, self._changed, self._over = Lock(), Condition(), Event()
        self._failure = ServerGone("the connection is that of the process which forked this one", fix="connect again")
        self._has_reader, self._waiting = False, 0
        self._exchanges.clear()
        self._posts.clear()
        self._abandoned.clear()
        self._over.set()
        self._transport.leave_to_parent()

    def _begin(self, header: RequestHeader, payloads: Payloads, until: float) -> Exchange:
        sizes = [len(payload) for payload in payloads]
        require_sizes(sizes, self.limits)
        exchange = Exchange(header, SentPayloads(payloads) if come_in_chunks(sizes) else None, begin_span(header))
        try:
            self._send_request(exchange, payloads, until)
        except TmmuError as error:
            exchange.fail(error)
            raise
        return exchange

    def _send_request(self, exchange: Exchange, payloads: Payloads, until: float) -> None:
        """Sends a request, and payloads where they are small; ``REQUEST_TOO_LARGE`` for a header that is."""
        trace = "" if exchange.span is None else exchange.span.traceparent
        try:
            body = encode_request(exchange.request, payloads, seconds=until - monotonic(), trace=trace)
        except (OverflowError, TypeError) as error:
            raise InvalidConfig(f"a request that cannot be sent: {error}", fix="give what its call takes") from error
        if len(body[0]) > self.limits.frame_bytes:
            raise RequestTooLarge(f"a header of {len(body[0])} bytes", fix=f"{self.limits.header_bytes} are the most")
        if exchange.span is not None:
            exchange.span.note_encoded()
        with self._sending:
            frames = self._posted_frames()
            self._register(exchange)
            frames += encode_frame(self._tagger, FrameKind.REQUEST, exchange.stream, body)
            self._transmit(frames, until)

    def _register(self, exchange: Exchange) -> None:
        """Gives a stream to a request; those who send hold their lock, so that streams only grow."""
        if self._failure is not None:
            raise _again(self._failure)
        self._last_stream += 1
        exchange.stream = self._last_stream
        self._exchanges[exchange.stream] = exchange

    def _posted_frames(self) -> list[bytes | memoryview]:
        frames: list[bytes | memoryview] = []
        while self._posts:
            header = self._posts.popleft()
            exchange = Exchange(header, None)
            self._register(exchange)
            body = encode_request(header, (), seconds=_POST_SECONDS)
            frames += encode_frame(self._tagger, FrameKind.REQUEST, exchange.stream, body)
        return frames

    def _send_chunks(self, exchange: Exchange, chunks: SentPayloads, until: float) -> None:
        """Sends payloads as credit comes, until all are sent or the request has failed."""
        while not chunks.is_sent and not exchange.is_over:
            chunk = chunks.next_chunk(CHUNK_BYTES)
            if chunk is None:
                self._wait(lambda: chunks.credit > 0 or exchange.is_over, until)
            else:
                self._send(FrameKind.CHUNK, exchange.stream, (chunk,), until)

    def end(self, exchange: Exchange) -> None:
        """Forgets a request; where it is not over, the server is told that nobody waits."""
        exchange.end_span()
        if self._forget(exchange):
            with suppress(TmmuError):  # the connection is over, and the server knows
                self._send(FrameKind.CANCEL, exchange.stream, (b"",), monotonic() + _LOOK_SECONDS)

    def _forget(self, exchange: Exchange) -> bool:
        """Whether the server is to be told that nobody waits."""
        if exchange.is_over and exchange.stream not in self._exchanges:  # as answers leave it that came at once
            return False
        with self._changed:
            self._exchanges.pop(exchange.stream, None)
            self._note_receiving()
        return not exchange.is_over and self._failure is None

    # -- sending

    def _send(self, kind: FrameKind, stream: int, parts: Sequence[bytes | memoryview], until: float) -> None:
        with self._sending:
            self._transmit(encode_frame(self._tagger, kind, stream, parts), until)

    def _transmit(self, parts: Sequence[bytes | memoryview], until: float) -> None:
        """Sends bytes of frames that have their tags: whatever breaks off here, breaks the connection."""
        if self._failure is not None:
            raise _again(self._failure)
        try:
            self._transport.send(parts, until)
            self._spoke = monotonic()
        except OSError as error:
            raise self._break(_gone(error)) from error
        except BaseException:
            self._break(ServerGone("a request was not sent to its end", fix="connect again"))
            raise

    # -- receiving

    def _wait(self, is_ready: Callable[[], object], until: float) -> None:
        """Returns when something is so, by ``until``; receives where nobody else does."""
        while not is_ready():
            with self._changed:
                while self._has_reader and self._failure is None and not is_ready() and monotonic() < until:
                    self._waiting += 1
                    try:
                        self._changed.wait(until - monotonic())
                    finally:
                        self._waiting -= 1
                if is_ready():
                    return
                if self._failure is not None:
                    raise _again(self._failure)
                if monotonic() >= until:
                    raise DeadlineExceeded("there was no answer in time", fix="give the request a later deadline")
                self._has_reader = True
            try:
                self._receive(until)
            finally:
                self._end_receiving()

    def _end_receiving(self) -> None:
        """Another thread may receive; those that wait look what came for them."""
        with self._changed:
            self._has_reader = False
            if self._waiting:
                self._changed.notify_all()

    def _receive(self, until: float) -> bool:
        """Takes what came, or comes by ``until``; whether something did. The caller is the only one who receives."""
        try:
            count = self._transport.receive(self._reader.buffer(), until)
            if count is None:
                return False
            if count == 0:
                raise ConnectionResetError(0, "the server closed the connection")
            self._heard = monotonic()
            self._reader.advance(count)
            self._transport.is_taking = False
        except (OSError, ValueError) as error:  # ValueError: of a socket that was closed meanwhile
            self._break(_gone(error))
        except TmmuError as error:
            self._break(error)
        except BaseException:
            if self._transport.is_taking:  # else it waited, and nothing is lost
                self._break(ServerGone("what came was not taken to its end", fix="connect again"))
            raise
        return True

    def _break(self, error: TmmuError) -> TmmuError:
        """Ends the connection, and all that is under way; the first reason stays."""
        with self._changed:
            if self._failure is None:
                self._failure = error
                for exchange in tuple(self._exchanges.values()):
                    exchange.fail(_again(error))
            self._changed.notify_all()
        self._over.set()
        self._transport.close()
        return self._failure

    def take_frame(self, kind: FrameKind, stream: int, body: memoryview) -> None:
        """As ``FrameHandler.take_frame``."""
        if self._opening.ready is None:
            self._take_opening(kind, body)
        elif kind in (FrameKind.ANSWER, FrameKind.PART):
            self._take_answer(kind, stream, body)
        elif kind is FrameKind.FAILURE and stream == 0:
            raise decode_failure(body)
        elif kind is FrameKind.FAILURE:
            self._fail(stream, decode_failure(body))
        elif kind is FrameKind.CREDIT:
            exchange = self._exchanges.get(stream)
            if exchange is not None and exchange.chunks is not None:
                exchange.chunks.add_credit(CREDIT.unpack(body)[0])
        elif kind is FrameKind.DRAIN:
            self.is_draining = True
        elif kind is not FrameKind.PONG:
            raise broken(f"{kind.name} of a server")

    def place_of_chunk(self, stream: int, length: int) -> memoryview | None:
        """As ``FrameHandler.place_of_chunk``."""
        exchange = self._exchanges.get(stream)
        return None if exchange is None or exchange.received is None else exchange.received.place(length)

    def take_chunk(self, stream: int, length: int) -> None:
        """As ``FrameHandler.take_chunk``."""
        exchange = self._exchanges.get(stream)
        if exchange is not None:
            self._grant(exchange, exchange.take_chunk(length))

    def _take_answer(self, kind: FrameKind, stream: int, body: memoryview) -> None:
        exchange = self._exchanges.get(stream)
        if exchange is None:
            return
        envelope, inline = decode_body(ANSWER, body, OWN_LIMITS)
        try:
            credit = exchange.take(kind, envelope, inline, OWN_LIMITS)
        except RequestTooLarge as error:
            self._fail(stream, error)
            return
        self._grant(exchange, credit)
        if exchange.is_over:
            self._exchanges.pop(stream, None)

    def _grant(self, exchange: Exchange, credit: int) -> None:
        if exchange.received is not None or self._reader.is_exact:
            self._note_receiving()
        if credit:
            self._send(FrameKind.CREDIT, exchange.stream, (CREDIT.pack(credit),), monotonic() + self._deadline)

    def _note_receiving(self) -> None:
        """Whether payloads come in chunks, of which nothing is to be copied."""
        self._reader.is_exact = any(exchange.received is not None for exchange in tuple(self._exchanges.values()))

    def _fail(self, stream: int, error: TmmuError) -> None:
        exchange = self._exchanges.pop(stream, None)
        if exchange is not None:
            exchange.fail(error)

    # -- opening

    def _open(self, until: float) -> None:
        try:
            hello = encode_frame(self._tagger, FrameKind.HELLO, 0, (self._opening.hello,))
            self._transmit([PREAMBLE, *hello], until)
            self._wait(lambda: self._opening.ready is not None, until)
        except BaseException:
            self._break(ServerGone("the connection did not open", fix="connect again"))
            raise

    def _take_opening(self, kind: FrameKind, body: memoryview) -> None:
        proof = self._opening.take(kind, body)
        if proof is not None:
            frame = encode_frame(self._tagger, FrameKind.PROOF, 0, (proof,))
            self._transmit(frame, monotonic() + self._deadline)
            self._tagger, incoming = self._opening.taggers()
            self._reader.open(incoming, OWN_LIMITS.frame_bytes, may_fail=True)

    # -- signs of life

    def _look_after(self) -> None:
        """Once a second: sends what was posted and what says that the client is there, and hears the server."""
        assert self._opening.welcome is not None
        beat = self._opening.welcome.heartbeat / 1000
        while not self._over.wait(min(_LOOK_SECONDS, beat / 2)):
            now = monotonic()
            if self._heard < now - _SILENT_BEATS * beat:
                self._break(ServerGone("the server has not said anything for too long", fix="connect again"))
            try:
                self._speak(now, beat)
            except TmmuError:
                return
            self._hear()

    def _speak(self, now: float, beat: float) -> None:
        """Nothing while another thread sends: it may wait as long as its request, and who looks after it may not."""
        if not self._sending.acquire(blocking=False):
            return
        try:
            frames: list[bytes | memoryview] = []
            while self._abandoned:
                exchange = self._abandoned.popleft()
                if self._forget(exchange):
                    frames += encode_frame(self._tagger, FrameKind.CANCEL, exchange.stream)
            frames += self._posted_frames()
            if self._spoke < now - beat or self._heard < now - beat:
                frames += encode_frame(self._tagger, FrameKind.PING, 0, (NUMBER.pack(self._last_stream),))
            if frames:
                self._transmit(frames, now + beat)
        finally:
            self._sending.release()

    def _hear(self) -> None:
        """Takes what came, where no other thread does; one that waits takes its turn in between."""
        has_more = True
        while has_more and self._failure is None:
            with self._changed:
                if self._has_reader:
                    return
                self._has_reader = True
            try:
                has_more = self._receive(0.0)
            finally:
                self._end_receiving()


def _gone(error: Exception) -> ServerGone:
    reason = getattr(error, "strerror", None) or (error.args[-1] if error.args else type(error).__name__)
    return ServerGone(f"the connection broke: {reason}", fix="connect again")


def _again(error: TmmuError) -> TmmuError:
    """The same error for another thread, with a traceback of its own."""
    copy: Any = type(error)(error.what, fix=error.fix, **dict(error.fields))
    return copy  # type: ignore[no-any-return]
