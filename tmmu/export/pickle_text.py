"""Writes plain values as a pickle, by its second protocol: the opcodes that torch's viewer in the browser knows.

Only lists, dictionaries, texts, truth values and numbers, so that loading it makes nothing else. Equal values give
equal bytes, under every version of Python. Nothing here reads a pickle.
"""

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

Plain: TypeAlias = "Mapping[str, Plain] | Sequence[Plain] | str | int"
BATCH: Final = 1000
"""Items that one opcode takes, as in Python's own pickles: a reader keeps them on a stack."""


def encode_pickle(content: Plain) -> bytes:
    """The bytes of the file. Each text is written once; containers are not shared."""
    parts: list[bytes] = [b"\x80\x02"]
    _append(parts, content, {})
    return b"".join((*parts, b"."))


def _append(parts: list[bytes], content: Plain, memo: dict[str, int]) -> None:
    """Add the opcodes of ``content`` to ``parts``."""
    if isinstance(content, str):
        parts.append(_encode_text(content, memo))
    elif isinstance(content, int):
        parts.append(_encode_number(content))
    elif isinstance(content, Mapping):
        parts.append(b"}(")
        for name, member in content.items():
            parts.append(_encode_text(name, memo))
            _append(parts, member, memo)
        parts.append(b"u")
    else:
        parts.append(b"]")
        for start in range(0, len(content), BATCH):
            parts.append(b"(")
            for member in content[start : start + BATCH]:
                _append(parts, member, memo)
            parts.append(b"e")


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
