"""The server's part of an opening: versions, limits, and who the client is (docs/spec/wire.md)."""

from secrets import token_bytes
from typing import Final

from tmmu.errors import KeyRefused
from tmmu.server.keys import KeyRing
from tmmu.wire.envelopes import ENCODER, decode_header
from tmmu.wire.frames import FrameKind, FrameTagger, broken
from tmmu.wire.limits import WireLimits
from tmmu.wire.opening import HELLO, NO_SECRET, PROOF, Transcript, Welcome, choose_version

ANYBODY: Final = "anybody"
"""The name of every client of a server that takes no keys."""


class ServerOpening:
    """Of one connection. ``heartbeat``: seconds. ``is_encrypted``: frames need no tags then."""

    def __init__(self, limits: WireLimits, keys: KeyRing | None, *, heartbeat: float, is_encrypted: bool) -> None:
        self._limits, self._keys, self._heartbeat, self._is_encrypted = limits, keys, heartbeat, is_encrypted
        self._transcript: Transcript | None = None
        self._wants_tags = True
        self.version = 0
        """Of the wire, once the client has said what it speaks."""

    def require(self, kind: FrameKind, stream: int) -> None:
        """``WIRE_BROKEN`` for a frame that is not the next one of an opening."""
        if stream or kind is not (FrameKind.HELLO if self._transcript is None else FrameKind.PROOF):
            raise broken(f"{kind.name} in an opening")

    def welcome(self, body: memoryview) -> bytes:
        """The body of ``WELCOME``, for that of ``HELLO``."""
        hello = decode_header(HELLO, body)
        self._wants_tags = hello.tags or not self._is_encrypted
        self.version = choose_version(hello.versions)
        welcome = Welcome(
            version=self.version,
            nonce=token_bytes(32),
            limits=self._limits,
            heartbeat=max(int(self._heartbeat * 1000), 1),
            tags=self._wants_tags,
            takes_keys=self._keys is not None,
        )
        encoded = ENCODER.encode(welcome)
        self._transcript = Transcript(body, encoded)
        return encoded

    def let_in(self, body: memoryview) -> tuple[str, FrameTagger, FrameTagger]:
        """The client's name, for the body of ``PROOF``; tags of its frames, and of the server's. ``KEY_REFUSED``."""
        transcript = self._transcript
        assert transcript is not None
        proof = decode_header(PROOF, body).proof
        if self._keys is not None:
            client, secret = self._keys.client_with(lambda digest: transcript.is_proof(digest, proof))
        elif transcript.is_proof(NO_SECRET, proof):
            client, secret = ANYBODY, NO_SECRET
        else:
            raise KeyRefused("the proof is none", fix="connect with a client of the server's version")
        return client, *transcript.taggers(secret, tags=self._wants_tags)
