"""A client's frames as bytes: an opening as it should be, and then whatever a test likes."""

import socket
from typing import Any, Final

from tests.server.wire_running import RunningWire
from tests.unit.wire.sums import Add
from tmmu.wire.envelopes import ENCODER
from tmmu.wire.frames import PREAMBLE, PREFIX, FrameKind, FrameTagger, encode_frame
from tmmu.wire.opening import NO_SECRET, VERSIONS, Hello, Proof, Transcript


def request_of(sizes: list[int], header: Any = None, *, inline: bytes = b"", deadline: int = 60_000) -> bytes:
    """The body of a request."""
    envelope = ENCODER.encode((sizes, deadline, "", Add() if header is None else header))
    return len(envelope).to_bytes(4, "little") + envelope + inline


class RawFrames:
    """Those of a client without a key: ``hello`` first, then ``proof``, then what ``encoded`` gives its tags."""

    def __init__(self) -> None:
        self._hello = ENCODER.encode(Hello(versions=VERSIONS, nonce=bytes(32), tags=True))
        self._tagger = FrameTagger(None)
        self._last = 0

    def hello(self) -> bytes:
        return PREAMBLE + self.encoded(FrameKind.HELLO, 0, self._hello)

    def proof(self, welcome: bytes) -> bytes:
        """``welcome``: the body of the answer to ``hello``."""
        transcript = Transcript(self._hello, welcome)
        proof = self.encoded(FrameKind.PROOF, 0, ENCODER.encode(Proof(proof=transcript.proof(NO_SECRET))))
        self._tagger, _ = transcript.taggers(NO_SECRET, tags=True)
        return proof

    def encoded(self, kind: FrameKind, stream: int, body: bytes = b"") -> bytes:
        return b"".join(encode_frame(self._tagger, kind, stream, (body,)))

    def next_stream(self) -> int:
        self._last += 1
        return self._last


class RawClient:
    """One with a socket."""

    open: Final[list[socket.socket]] = []

    def __init__(self, wire: RunningWire) -> None:
        self.socket = wire.socket()
        self.open.append(self.socket)
        frames = RawFrames()
        self.encoded = frames.encoded
        self.socket.sendall(frames.hello())
        self.socket.sendall(frames.proof(self.frame(0)[2]))
        assert self.frame(16)[0] == FrameKind.READY

    def frame(self, tag_bytes: int = 16) -> tuple[int, int, bytes]:
        kind, _, _, stream, length = PREFIX.unpack(self.exactly(PREFIX.size))
        return kind, stream, self.exactly(length + tag_bytes)[:length]

    def exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    def rest(self) -> bytes:
        """What comes until the server closes."""
        try:
            return b"".join(iter(lambda: self.socket.recv(65536), b""))
        except ConnectionResetError:
            return b""
