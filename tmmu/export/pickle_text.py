"""Writes plain values as a pickle, by its second protocol: the opcodes that torch's viewer in the browser knows.

Only lists, dictionaries, texts, truth values and numbers, so that loading it makes nothing else. Equal values give
equal bytes, under every version of Python. Nothing here reads a pickle.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

Plain: TypeAlias = "Mapping[str, Plain] | Sequence[Plain] | str | int"
BATCH: Final = 1000
"""Items that one opcode takes, as in Python's own pickles: a reader keeps them on a stack."""


def encode_pickle(content: Plain) -> bytes:
    """The bytes of the file. Each text is written once; containers are not shared."""
    memo: dict[str, int] = {}
    return b"".join((b"\x80\x02", *_encode(content, memo), b"."))


def _encode(content: Plain, memo: dict[str, int]) -> Iterator[bytes]:
    if isinstance(content, str):
        yield _encode_text(content, memo)
    elif isinstance(content, int):
        yield _encode_number(content)
    elif isinstance(content, Mapping):
        yield b"}("
        for name, member in content.items():
            yield _encode_text(name, memo)
            yield from _encode(member, memo)
        yield b"u"
    else:
        yield b"]"
        for start in range(0, len(content), BATCH):
            yield b"("
            for member in content[start : start + BATCH]:
                yield from _encode(member, memo)
            yield b"e"


def _encode_text(text: str, memo: dict[str, int]) -> bytes:
    if text in memo:
        return _numbered(b"h", b"j", memo[text])
    number = memo[text] = len(memo)
    encoded = text.encode("utf-8")
    return b"X" + len(encoded).to_bytes(4, "little") + encoded + _numbered(b"q", b"r", number)


def _numbered(short: bytes, long: bytes, number: int) -> bytes:
    return short + bytes((number,)) if number < 256 else long + number.to_bytes(4, "little")


def _encode_number(number: int) -> bytes:
    if isinstance(number, bool):
        return b"\x88" if number else b"\x89"
    if 0 <= number < 256:
        return b"K" + bytes((number,))
    width = number.bit_length() // 8 + 1
    return b"\x8a" + bytes((width,)) + number.to_bytes(width, "little", signed=True)
