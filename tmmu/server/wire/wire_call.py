"""A request that is being answered: what its service sees of it, and what goes back."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Semaphore
from time import monotonic
from typing import TYPE_CHECKING, Final

import msgspec

from tmmu.errors import DeadlineExceeded
from tmmu.wire.envelopes import encode_answer
from tmmu.wire.frames import FrameKind
from tmmu.wire.interface import Cancellation, Payloads, Peer, RequestHeader
from tmmu.wire.payloads.transfer import ReceivedPayloads, SentPayloads, come_in_chunks
from tmmu.wire.stages import StageTimeline

if TYPE_CHECKING:
    from tmmu.server.wire.server_connection import ServerConnection

_PARTS_AHEAD: Final = 64
"""Parts of an answer that wait to be sent; whoever sends more waits too."""
_LOOK_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A frame, and the payloads that follow it in chunks."""

    kind: FrameKind
    body: Sequence[bytes | memoryview]
    chunks: SentPayloads | None


def outgoing(
    kind: FrameKind, header: msgspec.Struct, payloads: Payloads, stages: Sequence[int] = ()
) -> OutgoingMessage:
    """A part or an answer; ``stages``: what is told of them."""
    in_chunks = come_in_chunks([len(payload) for payload in payloads])
    return OutgoingMessage(kind, encode_answer(header, payloads, stages), SentPayloads(payloads) if in_chunks else None)


class WireCall(Cancellation):
    """As ``ServiceCall``. ``received`` and ``outbox`` are the event loop's."""

    def __init__(
        self, connection: "ServerConnection", stream: int, header: RequestHeader, seconds: float, trace: str
    ) -> None:
        super().__init__()
        self.trace, self.stages = trace, StageTimeline()
        self._connection, self.stream, self.header = connection, stream, header
        self.peer: Peer = connection.peer
        self.began = monotonic()
        self.deadline = self.began + seconds
        self.has_memory = False
        """Whether it has memory for payloads, or waits for some."""
        self.is_running = False
        """Whether a worker thread has it, and its payloads; the event loop's."""
        self.received: ReceivedPayloads | None = None
        self.heard = self.began
        """When a chunk came last, or credit was given."""
        self.outbox = deque[OutgoingMessage]()
        self.sending: SentPayloads | None = None
        self.has_parts = False
        """Whether the answer streams: all of it goes through the outbox then, in its order."""
        self.tells_stages = False
        """Whether the client is told where the time went."""
        self.is_answered = False
        """Whether an answer went from a worker thread, or a failure is about to; with the turn of the connection."""
        self._room: Semaphore | None = None
        """For parts, of an answer that has any."""

    def send_part(self, header: msgspec.Struct, payloads: Payloads = ()) -> None:
        """As ``ServiceCall.send_part``; waits while many parts wait to be sent."""
        message, room, self.has_parts = outgoing(FrameKind.PART, header, payloads), self._room_for_parts(), True
        while not (self.is_cancelled or room.acquire(timeout=_LOOK_SECONDS)):
            pass
        if self.is_cancelled:
            raise DeadlineExceeded("nobody waits for the answer", fix="give the request a later deadline")
        self._connection.send_from_thread(self, message)

    def _room_for_parts(self) -> Semaphore:
        with self._lock:
            if self._room is None:
                self._room = Semaphore(_PARTS_AHEAD)
            return self._room

    def next_call(self) -> "tuple[WireCall, Payloads] | None":
        """The next one of its connection, where its thread stays there; by that thread, once it is answered."""
        return self._connection.next_call(self)

    def leave(self) -> None:
        """Its thread stays no longer."""
        self._connection.leave(self)

    def note_sent(self, message: OutgoingMessage) -> None:
        """A message of the outbox is on its way."""
        if message.kind is FrameKind.PART:
            self._room_for_parts().release()
