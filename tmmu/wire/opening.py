"""How a connection opens: versions, limits, and a proof of the key that sends no key (docs/spec/wire.md)."""

from collections.abc import Sequence
from hmac import compare_digest
from typing import Annotated, Final

import msgspec
from blake3 import blake3

from tmmu.errors import WireBroken
from tmmu.wire.frames import FrameTagger
from tmmu.wire.interface import WireHeader
from tmmu.wire.limits import WireLimits

VERSIONS: Final = (1, 2)
"""Of the wire, that this code speaks."""
STAGES_VERSION: Final = 2
"""From which on the answer to a request with a trace tells the server's stages."""
NO_SECRET: Final = bytes(32)
Bytes32 = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
ShortText = Annotated[str, msgspec.Meta(max_length=128)]


class Hello(WireHeader, frozen=True):
    """What the client opens with."""

    versions: Annotated[tuple[Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)], ...], msgspec.Meta(max_length=64)]
    nonce: Bytes32
    tags: bool


class Welcome(WireHeader, frozen=True):
    """What the server says to it. ``heartbeat``: milliseconds."""

    version: int
    nonce: Bytes32
    limits: WireLimits
    heartbeat: Annotated[int, msgspec.Meta(ge=1, le=3_600_000)]
    tags: bool
    takes_keys: bool


class Proof(WireHeader, frozen=True):
    """That the client knows a key."""

    proof: Bytes32


class Ready(WireHeader, frozen=True):
    """The client is let in."""

    client: ShortText
    connection: ShortText


HELLO: Final = msgspec.msgpack.Decoder(Hello)
WELCOME: Final = msgspec.msgpack.Decoder(Welcome)
PROOF: Final = msgspec.msgpack.Decoder(Proof)
READY: Final = msgspec.msgpack.Decoder(Ready)


class Transcript:
    """What both ends have said before the proof; keys and proofs follow from it and the secret."""

    __slots__ = ("_digest",)

    def __init__(self, hello: bytes | memoryview, welcome: bytes | memoryview) -> None:
        self._digest = blake3(bytes(hello) + bytes(welcome)).digest()

    def proof(self, secret: bytes) -> bytes:
        """What only who knows the secret can say."""
        return blake3(b"tmmu wire proof" + self._digest, key=secret).digest()

    def is_proof(self, secret: bytes, proof: bytes) -> bool:
        """Whether it is; takes the same time for each."""
        return compare_digest(self.proof(secret), proof)

    def taggers(self, secret: bytes, *, tags: bool) -> tuple[FrameTagger, FrameTagger]:
        """Of the client's frames, and of the server's; without tags where the connection is encrypted."""
        keys = [
            blake3(b"tmmu wire " + who + self._digest, key=secret).digest() if tags else None
            for who in (b"client", b"server")
        ]
        return FrameTagger(keys[0]), FrameTagger(keys[1])


def choose_version(offered: Sequence[int]) -> int:
    """The highest version that both ends speak; ``WIRE_BROKEN`` where there is none."""
    common = set(offered) & set(VERSIONS)
    if not common:
        raise WireBroken(
            f"the client speaks versions {sorted(set(offered))[:8]} of the wire, the server {list(VERSIONS)}",
            fix="use a client of the server's version",
        )
    return max(common)
