"""How much one message may hold, checked before anything is allocated for it, and the sizes that both ends know."""

from typing import Annotated, Final

import msgspec

INLINE_BYTES: Final = 64 << 10
"""Payloads of a message that together have no more lie in its own frame."""
CHUNK_BYTES: Final = 512 << 10
"""Of a payload in one frame."""
WINDOW_BYTES: Final = 4 << 20
"""Of a message that are under way."""
SMALL_FRAME: Final = 1400
"""Bytes of a frame that is sent together with others: what a packet of Ethernet holds."""
OPENING_BYTES: Final = 1 << 10
"""Of a frame before ``READY``."""
ENVELOPE_LENGTH: Final = 4
MOST_DIMENSIONS: Final = 64
"""Of a tensor: as many as torch has."""
MOST_SECONDS: Final = 86400.0
"""Of a deadline."""
Whole = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class WireLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``header_bytes``: of the envelope of a message, its header with it. ``payloads``: how many a message has, and
    ``payload_bytes`` all of them together. ``streams``: requests under way on one connection. Nesting has no number of
    its own: a header is no deeper than its type.
    """

    header_bytes: Whole = 1 << 20
    payloads: Whole = 4096
    payload_bytes: Whole = 256 << 20
    streams: Whole = 64

    @property
    def frame_bytes(self) -> int:
        """The longest body of a frame."""
        return max(CHUNK_BYTES, ENVELOPE_LENGTH + self.header_bytes + INLINE_BYTES)
