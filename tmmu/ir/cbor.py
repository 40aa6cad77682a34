"""Deterministic CBOR (RFC 8949 section 4.2): a value has exactly one encoding.

Tags, floats and indefinite lengths are refused by a scan of the bytes, before the decoder runs: no file of ours has
them, and decoding them can be costly (shared references unfold exponentially).
"""

import re
from typing import Final

import cbor2

from tmmu.errors import PlanCorrupt

FIX: Final = "make the file again with tmmu plan"


def _short_strings(first: int) -> bytes:
    """A pattern of strings of up to 23 bytes whose heads count from ``first``: head, then as many bytes."""
    return b"|".join(b"[\\x%02x].{%d}" % (first + n, n) for n in range(24))


# Integers, containers, false, true, null: heads of 1, 2, 3, 5 or 9 bytes. Short strings: the length is in the head.
# The repetition is possessive (*+): the pattern never backtracks, so a scan is linear in the file.
_PLAIN: Final = re.compile(
    b"(?:[\\x00-\\x17\\x20-\\x37\\x80-\\x97\\xa0-\\xb7\\xf4-\\xf6]+"
    b"|[\\x18\\x38\\x98\\xb8]."
    b"|[\\x19\\x39\\x99\\xb9].."
    b"|[\\x1a\\x3a\\x9a\\xba].{4}"
    b"|[\\x1b\\x3b\\x9b\\xbb].{8}"
    b"|(?=[\\x60-\\x77])(?:" + _short_strings(0x60) + b")"
    b"|(?=[\\x40-\\x57])(?:" + _short_strings(0x40) + b"))*+",
    re.DOTALL,
)
# Heads of longer strings: the bytes that hold the length.
_LENGTH_BYTES: Final = {head + n: 1 << n for head in (0x58, 0x78) for n in range(4)}
_INDEFINITE: Final = {2: "string", 3: "text", 4: "array", 5: "map"}


def encode(value: object) -> bytes:
    """Canonical bytes: sorted keys, definite lengths, shortest integers."""
    data: bytes = cbor2.dumps(value, canonical=True)
    return data


def decode(data: bytes) -> object:
    """The value whose canonical encoding is ``data``; ``PlanCorrupt`` for anything else.

    Integers, booleans, null, strings, arrays and maps only. Time and memory are linear in ``len(data)``.
    """
    _scan(data)
    try:
        value = cbor2.loads(data)
        is_canonical = encode(value) == data
    except Exception as error:
        raise PlanCorrupt(f"not CBOR: {error}", fix=FIX) from error
    if not is_canonical:
        raise PlanCorrupt("not canonical CBOR", fix=FIX)
    return value


def _scan(data: bytes) -> None:
    """``data`` is whole items of the allowed kinds, or ``PlanCorrupt`` at the first byte that is not."""
    position, end = 0, len(data)
    while position < end:
        match = _PLAIN.match(data, position)
        position = match.end() if match else position
        if position < end:
            width = _LENGTH_BYTES.get(data[position])
            if width is None:
                raise PlanCorrupt(f"not our CBOR: {_kind(data[position])} at byte {position}", fix=FIX, byte=position)
            position += 1 + width + int.from_bytes(data[position + 1 : position + 1 + width], "big")
    if position > end or not data:
        raise PlanCorrupt(f"not CBOR: cut off after {end} bytes", fix=FIX, byte=end)


def _kind(head: int) -> str:
    """What a refused head byte announces: its upper 3 bits are the major type, its lower 5 the length."""
    major, minor = head >> 5, head & 31
    if major == 6:
        return "a tag"
    if minor == 31 and major in _INDEFINITE:
        return f"an indefinite {_INDEFINITE[major]}"
    if major == 7 and 25 <= minor <= 27:
        return "a float"
    return f"head byte {head:#04x} or what it announces"
