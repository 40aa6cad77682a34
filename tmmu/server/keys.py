"""Keys of clients: one in each line of a file, compared in constant time."""

from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import Final

from tmmu.codec.files import read_file
from tmmu.errors import InvalidConfig, KeyRefused

FILE_LIMIT: Final = 1 << 20
SHORTEST: Final = 16
"""Characters of a key: 64 bits, where each is drawn from sixteen."""


class KeyRing:
    """The keys that a server takes. Only digests are kept, so that a key is in no log and no dump of this object."""

    def __init__(self, keys: list[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def client_of(self, key: str) -> str:
        """The name of a key, ``key-1`` for the first; ``KEY_REFUSED`` for an unknown one. Each takes the same time."""
        digest, number = _digest(key), 0
        for index, known_digest in enumerate(self._digests, 1):
            number += index * compare_digest(known_digest, digest)
        if not number:
            raise KeyRefused("the key is none of this server's", fix="send Authorization: Bearer KEY")
        return f"key-{number}"

    def __len__(self) -> int:
        return len(self._digests)


def read_keys(path: Path) -> KeyRing:
    """The keys of a file: lines that are not empty and no ``#`` comment. ``INVALID_CONFIG`` for others."""
    fix = f"write a key of at least {SHORTEST} printable characters of ASCII, without spaces, in each line"
    try:
        lines = read_file(path, limit=FILE_LIMIT).decode().splitlines()
    except UnicodeDecodeError as error:
        raise InvalidConfig(f"{path}: no text", fix=fix) from error
    keys: list[str] = []
    for number, line in enumerate(lines, 1):
        key = line.strip()
        if not key or key.startswith("#"):
            continue
        if len(key) < SHORTEST or not (key.isascii() and key.isprintable()) or " " in key:
            raise InvalidConfig(f"{path}, line {number}: no key", fix=fix)
        if key in keys:
            raise InvalidConfig(f"{path}, line {number}: the key of an earlier line", fix="give each client its own")
        keys.append(key)
    if not keys:
        raise InvalidConfig(f"{path}: no keys", fix=fix)
    return KeyRing(keys)


def _digest(key: str) -> bytes:
    return sha256(key.encode(errors="surrogatepass")).digest()
