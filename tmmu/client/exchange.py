"""A request under way, as its client sees it: what came of its answer, and what of it is still to be sent."""

from collections import deque
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from tmmu.client.request_trace import RequestSpan
from tmmu.errors import TmmuError
from tmmu.wire.envelopes import AnswerEnvelope, decode_header, require_sizes
from tmmu.wire.frames import FrameKind, broken
from tmmu.wire.interface import Message, RequestHeader
from tmmu.wire.limits import WireLimits
from tmmu.wire.payloads.transfer import ReceivedPayloads, SentPayloads, come_in_chunks

Arrival: TypeAlias = "Message | TmmuError"


class Exchange:
    """Filled by whichever thread receives. ``arrivals``: parts, then the answer, or what it failed of."""

    def __init__(self, header: RequestHeader, chunks: SentPayloads | None, span: RequestSpan | None = None) -> None:
        self.request, self.chunks, self.span = header, chunks, span
        self.stream = 0
        self.arrivals = deque[Arrival]()
        self.is_over = False
        """Whether nothing more comes."""
        self.received: ReceivedPayloads | None = None
        self._awaited: tuple[FrameKind, Any] | None = None
        self._stages: Sequence[int] = ()

    def take(self, kind: FrameKind, envelope: AnswerEnvelope, inline: memoryview, limits: WireLimits) -> int:
        """A part or an answer came; returns the credit to give for what follows. ``REQUEST_TOO_LARGE`` for too much."""
        if self.received is not None:
            raise broken("an answer amid another one")
        require_sizes(envelope.sizes, limits)
        self._stages = envelope.stages
        received = ReceivedPayloads(envelope.sizes)
        header = self._decode(kind, envelope.header)
        if come_in_chunks(envelope.sizes):
            self.received, self._awaited = received, (kind, header)
            return received.grant()
        received.fill(inline)
        self._arrive(kind, header, received)
        return 0

    def take_chunk(self, length: int) -> int:
        """A chunk is in its place; returns the credit to give."""
        received = self.received
        if received is None or self._awaited is None:
            return 0
        received.note(length)
        if not received.is_whole:
            return received.grant()
        (kind, header), self.received, self._awaited = self._awaited, None, None
        self._arrive(kind, header, received)
        return 0

    def fail(self, error: TmmuError) -> None:
        """Nothing more comes."""
        if not self.is_over:
            self.arrivals.append(error)
            self._end(error.code)

    def _arrive(self, kind: FrameKind, header: Any, received: ReceivedPayloads) -> None:
        self.arrivals.append((header, received.payloads))  # first: who sees that it is over looks for the answer
        if kind is FrameKind.ANSWER:
            self._end()

    def _end(self, code: str = "") -> None:
        self.end_span(code)  # first: who sees that it is over may look at it
        self.is_over = True

    def end_span(self, code: str = "") -> None:
        """Nobody waits any more, whatever comes; nothing where the span is over."""
        if self.span is not None:
            self.span.end(self._stages, code)

    def _decode(self, kind: FrameKind, header: msgspec.Raw) -> msgspec.Struct:
        expected = self.request.part if kind is FrameKind.PART else type(self.request).answer
        if expected is None:
            raise broken("a part of an answer that has none")
        decoded: msgspec.Struct = decode_header(decoder_of(expected), header)
        return decoded


def decoder_of(kind: Any) -> "msgspec.msgpack.Decoder[Any]":
    """The decoder of a class, which is made once."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        decoder = _DECODERS[kind] = msgspec.msgpack.Decoder(kind)
    return decoder


_DECODERS: dict[Any, "msgspec.msgpack.Decoder[Any]"] = {}
