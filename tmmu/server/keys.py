"""Keys of clients: one in each line of a file, with what it may have, compared in constant time."""

from collections.abc import Callable, Sequence
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import Final

from blake3 import blake3

from tmmu.codec.files import read_file
from tmmu.errors import InvalidConfig, KeyRefused
from tmmu.server.admission.rights import DEFAULT_RIGHTS, ClientRights, parse_rights

FILE_LIMIT: Final = 1 << 20
SHORTEST: Final = 16
"""Characters of a key: 64 bits, where each is drawn from sixteen."""


class KeyRing:
    """The keys that a server takes. Only digests are kept, so that a key is in no log and no dump of this object."""

    def __init__(self, keys: Sequence[str], rights: Sequence[ClientRights] = ()) -> None:
        self._digests = [_digest(key) for key in keys]
        self._rights = dict(enumerate(rights, 1))

    def client_of(self, key: str) -> str:
        """The name of a key, ``key-1`` for the first; ``KEY_REFUSED`` for an unknown one. Each takes the same time."""
        digest = _digest(key)
        return self.client_with(lambda known_digest: compare_digest(known_digest, digest))[0]

    def client_with(self, matches: Callable[[bytes], bool]) -> tuple[str, bytes]:
        """The name of the key whose SHA-256 matches, and that; ``KEY_REFUSED`` for none. Looks at all of them."""
        number = 0
        for index, digest in enumerate(self._digests, 1):
            number += index * matches(digest)
        if not number:
            raise KeyRefused("the key is none of this server's", fix="send Authorization: Bearer KEY, or connect(key=)")
        return f"key-{number}", self._digests[number - 1]

    def folder_of(self, client: str) -> str:
        """A name for what a client keeps on disk: that of its key, wherever in the file the key stands."""
        digest = self._digests[int(client.removeprefix("key-")) - 1]
        return blake3(digest, derive_key_context="tmmu 2026 uploads of a key v1").hexdigest(16)

    def rights_of(self, client: str) -> ClientRights:
        """What a client may have, by the name of its key."""
        return self._rights.get(int(client.removeprefix("key-")), DEFAULT_RIGHTS)

    def __len__(self) -> int:
        return len(self._digests)


def read_keys(path: Path) -> KeyRing:
    """The keys of a file: lines that are not empty and no ``#`` comment, each a key and its rights, if it has any.

    ``INVALID_CONFIG`` for others.
    """
    fix = f"write a key of at least {SHORTEST} printable characters of ASCII, without spaces, in each line"
    try:
        lines = read_file(path, limit=FILE_LIMIT).decode().splitlines()
    except UnicodeDecodeError as error:
        raise InvalidConfig(f"{path}: no text", fix=fix) from error
    keys: dict[str, ClientRights] = {}
    for number, line in enumerate(lines, 1):
        key, *words = line.split() or [""]
        if not key or key.startswith("#"):
            continue
        if len(key) < SHORTEST or not (key.isascii() and key.isprintable()):
            raise InvalidConfig(f"{path}, line {number}: no key", fix=fix)
        if key in keys:
            raise InvalidConfig(f"{path}, line {number}: the key of an earlier line", fix="give each client its own")
        keys[key] = _read_rights(words, f"{path}, line {number}")
    if not keys:
        raise InvalidConfig(f"{path}: no keys", fix=fix)
    return KeyRing(list(keys), list(keys.values()))


def _read_rights(words: list[str], place: str) -> ClientRights:
    pairs = [word.partition("=")[::2] for word in words]
    if len({name for name, _ in pairs}) < len(pairs):
        raise InvalidConfig(f"{place}: a right is there twice", fix="write each once")
    try:
        return parse_rights(dict(pairs))
    except InvalidConfig as error:
        raise InvalidConfig(f"{place}: {error.what}", fix=error.fix) from error


def _digest(key: str) -> bytes:
    return sha256(key.encode(errors="surrogatepass")).digest()
