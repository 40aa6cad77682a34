"""The client's part of an opening: versions, keys, and whether the server knows the client's (docs/spec/wire.md)."""

from hashlib import sha256
from secrets import token_bytes

from tmmu.errors import KeyRefused
from tmmu.wire.envelopes import ENCODER, decode_failure, decode_header
from tmmu.wire.frames import FrameKind, FrameTagger, broken
from tmmu.wire.opening import NO_SECRET, READY, VERSIONS, WELCOME, Hello, Proof, Ready, Transcript, Welcome


class ClientOpening:
    """Of one connection. ``is_encrypted``: frames need no tags then."""

    def __init__(self, key: str | None, *, is_encrypted: bool) -> None:
        self._secret = NO_SECRET if key is None else sha256(key.encode()).digest()
        self._is_encrypted = is_encrypted
        self.hello = ENCODER.encode(Hello(versions=VERSIONS, nonce=token_bytes(32), tags=not is_encrypted))
        """The body of ``HELLO``."""
        self.welcome: Welcome | None = None
        self.ready: Ready | None = None
        """What the server said, once it has."""
        self._transcript: Transcript | None = None

    def take(self, kind: FrameKind, body: memoryview) -> bytes | None:
        """What a frame of the server asks for: the body of ``PROOF``, or nothing. Raises what the opening fails of."""
        if kind is FrameKind.FAILURE:
            raise decode_failure(body)
        if kind is FrameKind.WELCOME and self.welcome is None:
            self.welcome = decode_header(WELCOME, body)
            self._require_secret(self.welcome)
            self._transcript = Transcript(self.hello, body)
            return ENCODER.encode(Proof(proof=self._transcript.proof(self._secret)))
        if kind is FrameKind.READY and self.welcome is not None:
            self.ready = decode_header(READY, body)
            return None
        raise broken(f"{kind.name} in an opening")

    def taggers(self) -> tuple[FrameTagger, FrameTagger]:
        """Tags of the client's frames, and of the server's, behind ``PROOF``."""
        assert self.welcome is not None
        assert self._transcript is not None
        return self._transcript.taggers(self._secret, tags=self.welcome.tags)

    def _require_secret(self, welcome: Welcome) -> None:
        """That the server takes the key that there is, or none, at a version that was offered."""
        if welcome.version not in VERSIONS:
            raise broken(f"version {welcome.version} of the wire, of {list(VERSIONS)} that were offered")
        if not (welcome.tags or self._is_encrypted):
            raise broken("an opening without tags")
        if welcome.takes_keys and self._secret == NO_SECRET:
            raise KeyRefused("the server takes keys, and there is none", fix="give connect key=")
        if not welcome.takes_keys and self._secret != NO_SECRET:  # anybody may say so, and need not know the key
            raise KeyRefused("the server takes no keys, and proves to know none", fix="leave key= out of connect")
