"""A worker thread that stays with a connection whose client asks again at once: it reads the next request itself.

So a client that asks, waits and asks is answered by one thread, and no other one is woken. While a thread stays the
event loop does not read. It does again where nothing comes for a moment, where what comes is anything but one whole
request with its payloads in it, or came before the answer, and where a request runs for long: ``CANCEL`` and the end
of a connection are heard, and requests of several threads run side by side.
"""

import os
import select
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from tmmu.server.wire.connection.frame_writer import FrameWriter
from tmmu.wire.frame_reader import FrameReader

if TYPE_CHECKING:
    from tmmu.server.wire.wire_call import WireCall

WAIT_MILLISECONDS: Final = 2
"""For the next request; and within which a client has asked before for a thread to stay."""
LONGEST_SECONDS: Final = 0.005
"""Of a request during which nobody reads; twice as long before that is seen."""
_APART_SECONDS: Final = 0.1
"""Without a stay, once a client has sent a request before it had its answer."""


class ThreadStay:
    """Of one connection. ``owner`` is the call whose thread reads, ``None`` while the event loop does; with the turn of
    the connection's writer, under which the socket is open as well.
    """

    def __init__(self, transport: Any, reader: FrameReader, writer: FrameWriter) -> None:
        self._transport, self._reader, self._writer = transport, reader, writer
        self._poll: select.poll | None = None
        self.owner: WireCall | None = None
        self._began = 0.0
        """When its request did; 0 while it waits for the next one."""
        self._answered = self._apart_until = 0.0

    # -- by the event loop

    def is_due(self, heard: float) -> bool:
        """Whether a request that came at ``heard`` is of a client that asks once it has the answer before."""
        return heard - self._answered < WAIT_MILLISECONDS / 1000 and heard >= self._apart_until

    def begin(self, call: "WireCall") -> None:
        """Has the thread of a call, which is about to be given to one, read from now on."""
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        self._transport.pause_reading()
        with self._writer.turn:
            self.go_on(call)

    def take_back(self, now: float) -> bool:
        """Reads again where a request runs for long; whether a thread still stays."""
        with self._writer.turn:
            if self.owner is not None and self._began and self._began < now - LONGEST_SECONDS:
                self.owner = None
                self._transport.resume_reading()
            return self.owner is not None

    # -- by the thread that stays

    def has_more(self, call: "WireCall") -> bool:
        """Whether the thread of ``call`` stays, and a request came before its answer: others are not to wait for it."""
        with self._writer.turn:
            if self.owner is not call or not self._polled(0):
                return False
            self._apart_until = monotonic() + _APART_SECONDS
            return True

    def note_answer(self) -> None:
        """An answer was sent; by any thread that has sent one."""
        self._answered = monotonic()

    def receive(self, call: "WireCall") -> int | None:
        """How many bytes came for the thread of ``call``, which is answered; ``None`` where it does not stay.

        0: none came, or the connection is at its end.
        """
        with self._writer.turn:  # the loop takes back what is no wait: it must not between the look and the mark
            if self.owner is not call:
                return None
            self._began = 0.0
        is_ready = self._polled(WAIT_MILLISECONDS)
        with self._writer.turn:
            if not is_ready or self._writer.is_closing:
                return 0
            try:
                return os.readv(self._transport.get_extra_info("socket").fileno(), [self._reader.buffer()])
            except OSError:  # of which the loop hears
                return 0

    def go_on(self, call: "WireCall") -> None:
        """The thread that stays answers another call now; with the turn."""
        self.owner, self._began = call, monotonic()

    def leave(self, call: "WireCall") -> bool:
        """The thread of ``call`` stays no longer; whether it did."""
        with self._writer.turn:
            stayed = self.owner is call
            if stayed:
                self.owner = None
            return stayed

    def _polled(self, milliseconds: int) -> bool:
        """Whether something is there to be read; for the owner alone, one poll at a time."""
        assert self._poll is not None
        return bool(self._poll.poll(milliseconds))
