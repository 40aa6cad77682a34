"""The wire format of protobuf, as far as a writer of traces needs it: fields as bytes, to be joined to messages."""

import struct
from typing import Final

VARINT: Final = 0
FIXED_64: Final = 1
LENGTH: Final = 2
U64_LIMIT: Final = 1 << 64
_ONE_BYTE: Final = tuple(bytes((number,)) for number in range(0x80))


def varint(number: int) -> bytes:
    """Seven bits a byte, low ones first; ``number`` in ``0 .. 2**64 - 1``."""
    if 0 <= number < 0x80:
        return _ONE_BYTE[number]
    if not 0 <= number < U64_LIMIT:
        raise ValueError(f"{number} does not fit in 64 bits")
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def uint_field(field: int, number: int) -> bytes:
    """Field of a type that is a varint: unsigned numbers, enumerations, and signed numbers of 0 or more."""
    return varint(field << 3 | VARINT) + varint(number)


def double_field(field: int, number: float) -> bytes:
    """Field of type double."""
    return varint(field << 3 | FIXED_64) + struct.pack("<d", number)


def bytes_field(field: int, content: bytes) -> bytes:
    """Field of type bytes, or of a message."""
    return varint(field << 3 | LENGTH) + varint(len(content)) + content


def text_field(field: int, text: str) -> bytes:
    """Field of type string."""
    return bytes_field(field, text.encode("utf-8"))
