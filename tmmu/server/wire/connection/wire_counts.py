"""What a server has sent and received over the wire, and refused."""

from collections import Counter
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

_COMMON_REFUSALS: Final = ("KEY_REFUSED", "SERVER_BUSY", "WIRE_BROKEN")
"""Codes that are there from the beginning, so that their first one is seen."""


@dataclass(slots=True)
class WireCounts:
    """Of all connections so far. The event loop counts, and each thread that answers: by the methods, with the lock."""

    connections: int = 0
    requests: int = 0
    frames_in: int = 0
    frames_out: int = 0
    writes: int = 0
    joined_frames: int = 0
    """Frames that shared a write with another one."""
    bytes_in: int = 0
    bytes_out: int = 0
    refusals: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(_COMMON_REFUSALS, 0)))
    lock: Lock = field(default_factory=Lock)

    def note_connection(self) -> None:
        """Somebody has connected."""
        with self.lock:
            self.connections += 1

    def note_request(self) -> None:
        """A request came, whatever becomes of it."""
        with self.lock:
            self.requests += 1

    def note_received(self, *, size: int = 0, frames: int = 0) -> None:
        """Bytes came, or frames of which the bytes were told before."""
        with self.lock:
            self.bytes_in += size
            self.frames_in += frames

    def note_frame(self, size: int) -> None:
        """A frame that goes out."""
        with self.lock:
            self.frames_out += 1
            self.bytes_out += size

    def note_writes(self, writes: int, *, joined_frames: int = 0) -> None:
        """So many writes, and the frames that share the last of them, if there are more than one."""
        with self.lock:
            self.writes += writes
            self.joined_frames += joined_frames

    def note_refusal(self, code: str) -> None:
        """A request or a connection was refused."""
        with self.lock:
            self.refusals[code] += 1

    @property
    def refusals_by_code(self) -> dict[str, int]:
        """How many there were of each."""
        with self.lock:
            return dict(self.refusals)
