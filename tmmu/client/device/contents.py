"""What the client knows of bytes on the server: contents, and the storages of tensors, which may share one for a while.

A *storage* is what tensors alias: views of one storage see each other's writes. A *content* is bytes on the server.
Two storages may have one content, where both are known to hold the same bytes (equal calls, equal uploads); before one
of them is written it gets a content of its own.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch

from tmmu.errors import TmmuError


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadedTensor:
    """A tensor whose ``bytes`` are on the server already, by their BLAKE3; it spans them, ``stride`` in elements."""

    hash: bytes
    bytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class Content:
    """Bytes on the server, or on their way. ``number``: its name there. ``version`` counts writes.

    ``identity`` names the bytes: contents of one identity have the same. ``dtype``: that of the whole, as it was made.
    ``failure``: why it is not there. ``free`` is told of its end, by whichever thread that comes in.
    """

    __slots__ = ("__weakref__", "_free", "_sharers", "bytes", "dtype", "failure", "identity", "number", "version")

    def __init__(self, number: int, size: int, dtype: torch.dtype, free: Callable[[tuple[int, int]], object]) -> None:
        self.number, self.bytes, self.dtype, self._free = number, size, dtype, free
        self.version = 0
        self.identity = number.to_bytes(8, "little")
        self.failure: TmmuError | None = None
        self._sharers: deque[None] = deque()  # of which threads change the length without a lock

    def __del__(self) -> None:
        self._free((self.number, self.bytes))

    def note_write(self) -> None:
        """Has other bytes from now on."""
        self.version += 1
        self.identity = self.number.to_bytes(8, "little") + self.version.to_bytes(8, "little")

    @property
    def sharers(self) -> "deque[None]":
        """As long as there are storages that have this content."""
        return self._sharers


class RemoteStorage:
    """What tensors alias. Changes its content where it is written."""

    __slots__ = ("__weakref__", "_content")

    def __init__(self, content: Content) -> None:
        self._content = content
        content.sharers.append(None)

    def __del__(self) -> None:
        self._content.sharers.pop()

    @property
    def content(self) -> Content:
        """Its bytes now."""
        return self._content

    @property
    def is_shared(self) -> bool:
        """Whether another storage has the same content."""
        return len(self._content.sharers) > 1

    def exchange(self, content: Content) -> None:
        """Has other bytes from now on, for all tensors on it."""
        content.sharers.append(None)
        self._content.sharers.pop()
        self._content = content
