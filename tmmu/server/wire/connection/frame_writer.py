"""Frames on their way to a client: tags in the order in which they go, small frames together, and nothing without end.

The event loop writes through its transport. A thread that has an answer writes it to the socket itself, where nothing
waits to be written; whoever writes has the *turn*.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from threading import Lock
from time import monotonic
from typing import Any, Final

from tmmu.server.wire.connection.wire_counts import WireCounts
from tmmu.wire.frames import FrameKind, FrameTagger, encode_frame
from tmmu.wire.limits import SMALL_FRAME

_WRITE_AHEAD: Final = 1 << 20
"""Bytes of the transport's own buffer from which on nothing more is written."""

_MOST_UNTAKEN: Final = 1 << 20
"""Bytes that are sent beyond that: refusals, signs of life and credit, which a client has for the asking."""


class FrameWriter:
    """Of one connection; the event loop's, but for ``turn`` and ``write_now``."""

    def __init__(self, transport: Any, counts: WireCounts) -> None:
        self._transport, self._counts = transport, counts
        self._loop = asyncio.get_running_loop()
        self.tagger = FrameTagger(None)
        self.is_encrypted = transport.get_extra_info("sslcontext") is not None
        self.turn = Lock()
        """Of whoever gives frames their tags, and writes them in that order."""
        self.is_closing = False
        """Whether nothing is sent any more."""
        self.paused_since: float | None = None
        """Since when the client takes less than it is sent."""
        self._untaken = 0
        """Bytes that were sent since."""
        self._small: list[bytes | memoryview] = []
        self._small_frames = 0
        self._is_buffered = False
        """Whether the transport has bytes that its socket did not take; seen by the loop, since the transport's buffer
        is its own, and is in pieces while the loop writes it."""
        self._is_flush_due = False
        transport.set_write_buffer_limits(_WRITE_AHEAD)

    # -- by any thread

    def write_now(self, kind: FrameKind, stream: int, body: Sequence[bytes | memoryview]) -> bool:
        """Writes a frame to the socket itself, where nothing waits to be written; with the turn. What the socket does
        not take goes first of what the loop writes.
        """
        if self._small or self.is_closing or self.is_encrypted or self._is_buffered:
            return False
        data = b"".join(encode_frame(self.tagger, kind, stream, body))
        self._counts.note_frame(len(data))
        self._counts.note_writes(1)
        try:
            count = os.write(self._transport.get_extra_info("socket").fileno(), data)
        except BlockingIOError:
            count = 0
        except OSError:  # the client is gone, of which the loop hears
            return True
        if count < len(data):
            self._small.append(data[count:])
            self._loop.call_soon_threadsafe(self.flush)
        return True

    # -- by the event loop

    def pause(self) -> None:
        """The client takes less than it is sent."""
        self.paused_since = monotonic()

    def resume(self) -> None:
        """It took what there was."""
        self.paused_since, self._untaken = None, 0

    def send(self, kind: FrameKind, stream: int, parts: Sequence[bytes | memoryview] = (b"",)) -> None:
        """Sends a frame; small ones that are due together go together."""
        with self.turn:
            if not self.is_closing:
                self._write(kind, stream, parts)

    def flush(self) -> None:
        """Writes what waits for others that are due with it."""
        with self.turn:
            self._write_small()

    def close(self, is_due: Callable[[], bool] = lambda: True) -> None:
        """Sends what waits, and ends the connection behind it; where ``is_due``, which is asked with the turn."""
        with self.turn:
            if not is_due():
                return
            self._write_small()
            self.is_closing = True
        self._transport.close()

    def stop(self) -> None:
        """Sends nothing more; whoever writes has the socket until then."""
        with self.turn:
            self.is_closing = True

    def _write(self, kind: FrameKind, stream: int, parts: Sequence[bytes | memoryview]) -> None:
        frame = encode_frame(self.tagger, kind, stream, parts)
        size = sum(map(len, frame))
        self._counts.note_frame(size)
        if self.paused_since is not None:
            self._untaken += size
            if self._untaken > _MOST_UNTAKEN:
                self.is_closing = True
                self._transport.abort()
                return
        self._small_frames += 1
        if size > SMALL_FRAME:
            self._small.append(frame[0])
            self._write_small()
            for part in frame[1:-1]:
                self._put(part)
            self._counts.note_writes(len(frame) - 2)
            frame = frame[-1:]
        self._small += frame
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self.flush)

    def _write_small(self) -> None:
        """Writes what waits, in one piece; with the turn."""
        self._is_flush_due = False
        if self._small and not self.is_closing:
            self._counts.note_writes(1, joined_frames=self._small_frames if self._small_frames > 1 else 0)
            self._put(b"".join(self._small))
        self._small, self._small_frames = [], 0

    def _put(self, data: bytes | memoryview) -> None:
        """Gives bytes to the transport; with the turn."""
        self._transport.write(data)
        self._is_buffered = self._transport.get_write_buffer_size() > 0
