"""Frames: a prefix of twelve bytes, a body, and where the connection is not encrypted, a tag (docs/spec/wire.md)."""

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct
from typing import Final

from blake3 import blake3

from tmmu.errors import WireBroken

PREAMBLE: Final = b"\xf4tmmu\r\n\x01"
"""What a client sends first; its first byte begins neither HTTP nor TLS."""
PREFIX: Final = Struct("<BBHII")
"""Kind, 0, 0, stream, length of the body."""
TAG_BYTES: Final = 16
NUMBER: Final = Struct("<Q")
CREDIT: Final = Struct("<I")


class FrameKind(IntEnum):
    """What a frame is."""

    HELLO = 1
    WELCOME = 2
    PROOF = 3
    READY = 4
    REQUEST = 5
    PART = 6
    ANSWER = 7
    FAILURE = 8
    CHUNK = 9
    CREDIT = 10
    CANCEL = 11
    PING = 12
    PONG = 13
    DRAIN = 14


KINDS: Final = tuple(FrameKind)
BODY_LENGTHS: Final = {
    FrameKind.CREDIT: CREDIT.size,
    FrameKind.CANCEL: 0,
    FrameKind.PING: NUMBER.size,
    FrameKind.PONG: NUMBER.size,
    FrameKind.DRAIN: 0,
}
"""Of kinds that have always the same."""


class FrameTagger:
    """The tags of one direction, frame by frame; ``key``: 32 bytes, or ``None`` for no tags."""

    __slots__ = ("_key", "_number", "tag_bytes")

    def __init__(self, key: bytes | None) -> None:
        self._key, self._number = key, 0
        self.tag_bytes = 0 if key is None else TAG_BYTES

    def next_tag(self, prefix: bytes | memoryview, parts: Sequence[bytes | memoryview]) -> bytes:
        """The tag of the next frame, of ``tag_bytes`` bytes."""
        if self._key is None:
            return b""
        number = NUMBER.pack(self._number)
        self._number += 1
        if len(parts) == 1 and len(parts[0]) <= 4096:  # one call costs less than three
            return blake3(b"".join((number, prefix, parts[0])), key=self._key).digest(TAG_BYTES)
        state = blake3(number + prefix, key=self._key)
        for part in parts:
            state.update(part)
        return state.digest(TAG_BYTES)


def encode_frame(
    tagger: FrameTagger, kind: FrameKind, stream: int, parts: Sequence[bytes | memoryview] = (b"",)
) -> list[bytes | memoryview]:
    """What is sent of a frame whose body are ``parts``, one after the other; large ones are not copied."""
    prefix = PREFIX.pack(kind, 0, 0, stream, sum(map(len, parts)))
    return [prefix, *parts, tagger.next_tag(prefix, parts)]


def decode_prefix(data: bytes | memoryview, longest: int) -> tuple[FrameKind, int, int]:
    """Kind, stream and length of a frame. ``WIRE_BROKEN`` for what is none, or has a body above ``longest``."""
    kind, zero, zeros, stream, length = PREFIX.unpack(data)
    if not 1 <= kind <= len(KINDS) or zero or zeros:
        raise broken("bytes that are no frame")
    frame_kind = KINDS[kind - 1]
    if length != BODY_LENGTHS.get(frame_kind, length) or length > longest:
        raise broken(f"{frame_kind.name} of {length} bytes")
    return frame_kind, stream, length


def broken(what: str) -> WireBroken:
    """The error of a connection on which nothing can be trusted any more."""
    return WireBroken(f"{what} came over the wire", fix="connect again, with a client of the server's version")
