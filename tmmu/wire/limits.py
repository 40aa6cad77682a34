"""How much one message may hold, checked before anything is allocated for it."""

from dataclasses import dataclass
from typing import Final

MOST_DIMENSIONS: Final = 64
"""Of a tensor: as many as torch has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireLimits:
    """``header_bytes``: of the encoded header of a message. ``payloads``: how many a message has, and
    ``payload_bytes`` all of them together. ``streams``: requests under way on one connection. Nesting has no number of
    its own: a header is no deeper than its type.
    """

    header_bytes: int = 1 << 20
    payloads: int = 4096
    payload_bytes: int = 1 << 30
    streams: int = 64
