"""Deterministic CBOR (RFC 8949 section 4.2): one value, one spelling."""

from typing import cast

import cbor2

from tmmu.errors import PlanCorrupt


def encode(value: object) -> bytes:
    """Canonical bytes: sorted keys, definite lengths, shortest integers."""
    return cast(bytes, cbor2.dumps(value, canonical=True))


def decode(data: bytes) -> object:
    """The value whose canonical encoding is ``data``; ``PlanCorrupt`` for anything else."""
    try:
        value = cbor2.loads(data)
        same = encode(value) == data
    except Exception as error:
        raise PlanCorrupt(f"not CBOR: {error}", fix="make the file again with tmmu plan") from error
    if not same:
        raise PlanCorrupt("not canonical CBOR", fix="make the file again with tmmu plan")
    return value
