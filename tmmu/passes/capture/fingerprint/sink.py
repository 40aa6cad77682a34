"""Where a fingerprint is written: one stream of tokens that decides, and streams by subject that explain."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

from blake3 import blake3

Token: TypeAlias = str | bytes | int

SUBJECTS: Final = ("modules", "tensors", "attributes", "code", "inputs", "build", "flags", "patches")
_LIMIT: Final = 1 << 21
"""Tokens after which a model is too large to look at; a model of 126 layers needs 60,000."""


class Unnameable(Exception):
    """Something was met whose content cannot be told; ``str`` says what and where."""


class Sink:
    """Tokens, each with its type and length, so that two sequences give one stream only if they are equal."""

    def __init__(self) -> None:
        self._whole = blake3()
        self._streams: dict[str, list[bytes]] = {subject: [] for subject in SUBJECTS}
        self._stream = self._streams["attributes"]
        self._count = 0

    def emit(self, *tokens: Token) -> None:
        """The tokens stand at the end of the stream."""
        self._count += len(tokens)
        if self._count > _LIMIT:
            raise Unnameable(f"more than {_LIMIT} values hang on the model")
        data = b"".join([_spelled(token) for token in tokens])
        self._whole.update(data)
        self._stream.append(data)

    def again(self, first: int) -> None:
        """A reference to what stands at ``first``; to a subject alone, such numbers say nothing."""
        self._whole.update(_spelled("again") + _spelled(first))
        self._stream.append(_spelled("again"))

    @contextmanager
    def about(self, subject: str) -> Iterator[None]:
        """What is emitted inside belongs to ``subject``."""
        before, self._stream = self._stream, self._streams[subject]
        try:
            yield
        finally:
            self._stream = before

    def whole(self) -> bytes:
        """32 bytes over all tokens."""
        return self._whole.digest()

    def subject(self, subject: str) -> bytes:
        """32 bytes over the tokens of one subject."""
        return blake3(b"".join(self._streams[subject])).digest()


def _spelled(token: Token) -> bytes:
    if isinstance(token, str):
        text = token.encode("utf-8", "surrogatepass")
        return b"s%d:%b" % (len(text), text)
    if isinstance(token, bytes):
        return b"b%d:%b" % (len(token), token)
    number = b"%d" % token
    return b"i%d:%b" % (len(number), number)
