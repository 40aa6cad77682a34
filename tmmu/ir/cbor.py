"""Deterministic CBOR (RFC 8949 section 4.2): one value, one spelling.

What a decoder may meet is decided before it runs: tags, floats and indefinite lengths are refused by a scan of the
bytes, because decoding them can be costly (shared references that unfold exponentially) and no file of ours has them.
"""

import re
from typing import Final

import cbor2

from tmmu.errors import PlanCorrupt

FIX: Final = "make the file again with tmmu plan"


def _strings(first: int) -> bytes:
    """Strings of up to 23 bytes whose heads count from ``first``: head, then as many bytes."""
    return b"|".join(b"[\\x%02x].{%d}" % (first + n, n) for n in range(24))


# Integers, containers, false, true, null: heads of 1, 2, 3, 5 or 9 bytes. Short strings: the length is in the head.
_PLAIN: Final = re.compile(
    b"(?:[\\x00-\\x17\\x20-\\x37\\x80-\\x97\\xa0-\\xb7\\xf4-\\xf6]+"
    b"|[\\x18\\x38\\x98\\xb8]."
    b"|[\\x19\\x39\\x99\\xb9].."
    b"|[\\x1a\\x3a\\x9a\\xba].{4}"
    b"|[\\x1b\\x3b\\x9b\\xbb].{8}"
    b"|(?=[\\x60-\\x77])(?:" + _strings(0x60) + b")"
    b"|(?=[\\x40-\\x57])(?:" + _strings(0x40) + b"))*+",
    re.DOTALL,
)
_LONG: Final = {head + n: 1 << n for head in (0x58, 0x78) for n in range(4)}
_REFUSED: Final = {2: "an indefinite string", 3: "an indefinite text", 4: "an indefinite array", 5: "an indefinite map"}


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
        same = encode(value) == data
    except Exception as error:
        raise PlanCorrupt(f"not CBOR: {error}", fix=FIX) from error
    if not same:
        raise PlanCorrupt("not canonical CBOR", fix=FIX)
    return value


def _scan(data: bytes) -> None:
    """``data`` is whole items of the allowed kinds, or ``PlanCorrupt`` at the first byte that is not."""
    at, end = 0, len(data)
    while at < end:
        match = _PLAIN.match(data, at)
        at = match.end() if match else at
        if at < end:
            width = _LONG.get(data[at])
            if width is None:
                raise PlanCorrupt(f"not our CBOR: {_kind(data[at])} at byte {at}", fix=FIX, byte=at)
            at += 1 + width + int.from_bytes(data[at + 1 : at + 1 + width], "big")
    if at > end or not data:
        raise PlanCorrupt(f"not CBOR: cut off after {end} bytes", fix=FIX, byte=end)


def _kind(head: int) -> str:
    major, minor = head >> 5, head & 31
    if major == 6:
        return "a tag"
    if minor == 31 and major in _REFUSED:
        return _REFUSED[major]
    if major == 7 and 25 <= minor <= 27:
        return "a float"
    return f"head byte {head:#04x} or what it announces"
