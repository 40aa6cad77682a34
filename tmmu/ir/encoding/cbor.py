"""Deterministic CBOR (RFC 8949 section 4.2): a value has exactly one encoding.

``cbor_scan`` looks at the bytes before the decoder runs and refuses what no file of ours has: tags, floats, indefinite
lengths, keys that are no text, deep nests, more items than a file of its size can mean. Maps are built here; the
decoder is given one value between them at a time.
"""

from typing import Final

import cbor2

from tmmu.errors import PlanCorrupt
from tmmu.ir.encoding import cbor_scan

FIX: Final = cbor_scan.FIX
_MAP_HEADS: Final = range(0xA0, 0xC0)


def encode(value: object) -> bytes:
    """Canonical bytes: sorted keys, definite lengths, shortest integers."""
    data: bytes = cbor2.dumps(value, canonical=True)
    return data


def decode(data: bytes) -> object:
    """The value whose canonical encoding is ``data``; ``PlanCorrupt`` for anything else.

    Integers, booleans, null, strings, arrays and maps with text keys only. Linear in ``len(data)``; objects take at
    most ``cbor_scan.OBJECT_FACTOR`` times as many bytes and ``cbor_scan.OBJECT_BASE``.
    """
    maps: dict[tuple[str, ...], dict[str, object]] = {}
    root: object = None
    for piece in cbor_scan.scan(data):
        value: object
        if data[piece.start] in _MAP_HEADS:
            value = maps[piece.path] = {}
        else:
            value = _load(data, piece)
        if piece.path:
            maps[piece.path[:-1]][piece.path[-1]] = value
        else:
            root = value
    return root


def _load(data: bytes, piece: cbor_scan.Piece) -> object:
    """The value of a piece that is no map."""
    try:
        return cbor2.loads(data[piece.start : piece.end])
    except Exception as error:
        raise PlanCorrupt(f"not CBOR: {error}", fix=FIX) from error
