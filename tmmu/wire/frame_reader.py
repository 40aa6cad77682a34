"""Frames from bytes, whoever receives them: ``buffer`` says where the next bytes go, ``advance`` how many came.

Bodies of chunks go where the message lies, and all else into one buffer. While a message comes in chunks, no more is
read than the frame at hand has, so that no byte of it is copied twice.
"""

from hmac import compare_digest
from typing import Final, Protocol

from tmmu.wire.frames import PREFIX, FrameKind, FrameTagger, broken, decode_prefix
from tmmu.wire.limits import CHUNK_BYTES, OPENING_BYTES

_FIRST_BUFFER: Final = 4 << 10
_BUFFER: Final = 64 << 10
_NOTHING: Final = memoryview(b"")
_REQUEST: Final = int(FrameKind.REQUEST)


class FrameHandler(Protocol):
    """What is told of frames. ``body`` is valid during the call alone."""

    def take_frame(self, kind: FrameKind, stream: int, body: memoryview) -> None:
        """A frame that is no chunk came, with the tag that it should have."""

    def place_of_chunk(self, stream: int, length: int) -> memoryview | None:
        """Where the body of a chunk goes; ``None``: nobody needs it. ``WIRE_BROKEN`` where none may come."""

    def take_chunk(self, stream: int, length: int) -> None:
        """A chunk is in its place, with the tag that it should have."""


class FrameReader:
    """One direction of a connection. Any ``WIRE_BROKEN`` is the end of it."""

    def __init__(self, handler: FrameHandler) -> None:
        self._handler, self._tagger = handler, FrameTagger(None)
        self._scratch = memoryview(bytearray(_FIRST_BUFFER))
        self._begin = self._end = 0
        """What of the buffer is there and not taken yet."""
        self._body: memoryview | None = None
        """Of a frame under way that lies elsewhere than in the buffer; its bytes so far are ``_filled``."""
        self._filled = 0
        self._frame: tuple[FrameKind, int, int] | None = None
        self._prefix = b""
        self._longest = OPENING_BYTES
        self._is_opening, self._may_fail = True, False
        self.is_exact = False
        """Whether to read no more than the frame at hand has."""

    def open(self, tagger: FrameTagger, longest: int, *, may_fail: bool = False) -> None:
        """From the next frame on: its tags, and the longest body. ``may_fail``: it may be a bare ``FAILURE`` yet."""
        self._tagger, self._longest, self._is_opening, self._may_fail = tagger, longest, False, may_fail
        left = self._scratch[self._begin : self._end]
        self._scratch = memoryview(bytearray(max(_BUFFER, len(left))))
        self._scratch[: len(left)] = left
        self._begin, self._end = 0, len(left)

    @property
    def is_amid_frame(self) -> bool:
        """Whether a part of a frame is there, and its rest is not."""
        return self._frame is not None or self._end > self._begin

    def buffer(self) -> memoryview:
        """Where the next bytes that are received go; never empty."""
        if self._body is not None and self._filled < len(self._body):
            return self._body[self._filled :]
        missing = self._missing()
        if len(self._scratch) - self._end < missing:
            self._compact()
        return self._scratch[self._end : self._end + missing] if self.is_exact else self._scratch[self._end :]

    def advance(self, count: int) -> None:
        """So many bytes are in ``buffer``; tells the handler of frames that are whole now."""
        if self._body is not None and self._filled < len(self._body):
            self._filled += count
        else:
            self._end += count
        while self._frame is not None or self._end - self._begin >= PREFIX.size:
            if self._frame is None:
                self._begin_frame()
            if not self._end_frame():
                break
        if self._begin == self._end:
            self._begin = self._end = 0

    def feed(self, data: bytes | memoryview) -> None:
        """``advance`` for bytes that were received elsewhere."""
        rest = memoryview(data)
        while rest:
            place = self.buffer()
            count = min(len(place), len(rest))
            place[:count] = rest[:count]
            self.advance(count)
            rest = rest[count:]

    def take_request(self, count: int) -> tuple[int, memoryview] | None:
        """Stream and body of a ``REQUEST``, where the ``count`` bytes that came are one whole frame of that kind, with
        the tag that it should have; ``None`` where they are anything else: nothing is taken, and ``advance`` is next.
        """
        begin, end, tag_bytes = self._begin, self._end + count, self._tagger.tag_bytes
        if self._frame is not None or begin != self._end or count < PREFIX.size or self._scratch[begin] != _REQUEST:
            return None
        prefix = bytes(self._scratch[begin : begin + PREFIX.size])
        _, stream, length = decode_prefix(prefix, self._longest)
        tag_begin = begin + PREFIX.size + length
        if tag_begin + tag_bytes != end:
            return None
        body = self._scratch[begin + PREFIX.size : tag_begin]
        self._require_tag(FrameKind.REQUEST, prefix, body, tag_begin)
        self._begin = self._end = 0
        return stream, body

    def _missing(self) -> int:
        """Bytes that the buffer must have room for: what is not there of a prefix, or of body and tag behind one."""
        available = self._end - self._begin
        if self._frame is None:
            return PREFIX.size - available
        if self._body is not None:  # behind its tag the next prefix comes, where the message goes on
            return max(self._tagger.tag_bytes + PREFIX.size - available, 1)
        return max(self._frame[2] + self._tagger.tag_bytes - available, 1)

    def _compact(self) -> None:
        left = bytes(self._scratch[self._begin : self._end])
        self._scratch[: len(left)] = left
        self._begin, self._end = 0, len(left)

    def _begin_frame(self) -> None:
        """Reads a prefix, and finds where the body goes."""
        self._prefix = bytes(self._scratch[self._begin : self._begin + PREFIX.size])
        self._begin += PREFIX.size
        kind, stream, length = self._frame = decode_prefix(self._prefix, self._longest)
        if kind is FrameKind.CHUNK:
            if self._is_opening or not 0 < length <= CHUNK_BYTES:
                raise broken(f"a chunk of {length} bytes")
            place = self._handler.place_of_chunk(stream, length)
            self._body = memoryview(bytearray(length)) if place is None else place
        elif length + self._tagger.tag_bytes > len(self._scratch):
            self._body = memoryview(bytearray(length))
        else:
            return
        self._filled = min(self._end - self._begin, length)
        self._body[: self._filled] = self._scratch[self._begin : self._begin + self._filled]
        self._begin += self._filled

    def _end_frame(self) -> bool:
        """Tells the handler of the frame at hand, where all of it is there."""
        assert self._frame is not None
        kind, stream, length = self._frame
        if self._body is not None and self._filled < length:
            return False
        in_buffer = 0 if self._body is not None else length
        tag_bytes = 0 if self._may_fail and kind is FrameKind.FAILURE else self._tagger.tag_bytes
        if self._end - self._begin < in_buffer + tag_bytes:
            return False
        body = self._scratch[self._begin : self._begin + length] if self._body is None else self._body
        self._begin += in_buffer
        if tag_bytes:
            self._require_tag(kind, self._prefix, body, self._begin)
        self._begin += tag_bytes
        self._may_fail = False
        self._frame, self._body, self._filled = None, None, 0
        if kind is FrameKind.CHUNK:
            self._handler.take_chunk(stream, length)
        else:
            self._handler.take_frame(kind, stream, body)
        return True

    def _require_tag(self, kind: FrameKind, prefix: bytes, body: memoryview, begin: int) -> None:
        """``WIRE_BROKEN`` where the tag of a frame, which lies at ``begin`` of the buffer, is another."""
        tag = self._scratch[begin : begin + self._tagger.tag_bytes]
        if not compare_digest(self._tagger.next_tag(prefix, (body,)), tag):
            raise broken(f"{kind.name} with a wrong tag")
