"""The host tier: live bytes of sessions that have no arena, so that others may have their room.

An image has the positions that a session has read, and what recurs, as they were when they were last copied. Growing
tensors are copied from the first position that is new, since positions that were read do not change; so a session that
leaves a second time moves what it has read since. A session that reads another source begins anew, and so does its
image (``drop``). Invariants: images take at most ``budget`` bytes together; an image
is the session's and leaves with it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import torch

from tmmu.engine.geometry import Geometry, StateLengths, StateTensor
from tmmu.engine.session import Session
from tmmu.errors import SegmentFull
from tmmu.runtime.memory.slab import Slab

CHUNK_BYTES: Final = 8 << 20
"""Bytes that are copied at once."""


@dataclass(slots=True)
class _Image:
    """``tensors``: ``uint8[bytes]`` by name, of the capacity of the session; ``lengths`` of them are copied."""

    tensors: dict[str, torch.Tensor]
    size: int
    lengths: StateLengths | None = None
    """``None`` before it was filled; then what the session had read, which its state is a function of."""


@dataclass(slots=True)
class SwapCounts:
    """What has been moved so far: sessions and bytes, out to the host and in again."""

    sessions_out: int = 0
    sessions_in: int = 0
    bytes_out: int = 0
    bytes_in: int = 0


@dataclass(slots=True, kw_only=True)
class HostTier:
    """Images by session, in pinned memory where the device has such. ``budget`` 0: no session leaves the device."""

    geometry: Geometry
    slab: Slab
    budget: int
    counts: SwapCounts = field(default_factory=SwapCounts)
    used: int = 0
    _images: dict[str, _Image] = field(default_factory=dict)

    def copy_out(self, session: Session) -> None:
        """Brings the image of a session up to date; the arena stays as it is. ``SEGMENT_FULL`` where it has no room."""
        image = self._images.get(session.capability) or self._make_image(session)
        if image.lengths == session.lengths:
            return
        for tensor, offset in self._tensors_at(session):
            start = tensor.bytes_for(image.lengths) if image.lengths and tensor.grows else 0
            end = tensor.bytes_for(session.lengths)
            self.counts.bytes_out += end - start
            source, target = self.slab.bytes(session.base + offset, end), image.tensors[tensor.name]
            _copy(source, target, start, end)
        image.lengths = session.lengths

    def copy_in(self, session: Session) -> None:
        """Fills the arena of a session, which has its bytes but not its content, from its image."""
        image = self._images[session.capability]
        for tensor, offset in self._tensors_at(session):
            size = tensor.bytes_for(session.lengths)
            self.counts.bytes_in += size
            _copy(image.tensors[tensor.name], self.slab.bytes(session.base + offset, size), 0, size)

    def has(self, session: Session) -> bool:
        """Whether there is an image of a session."""
        return session.capability in self._images

    def drop(self, session: Session) -> None:
        """Forgets the image of a session; nothing where there is none."""
        image = self._images.pop(session.capability, None)
        if image is not None:
            self.used -= image.size
            for tensor in image.tensors.values():
                tensor.zero_()  # the host's allocator may give these bytes to anybody

    def _make_image(self, session: Session) -> _Image:
        sizes = {tensor.name: tensor.bytes_for(session.capacities) for tensor in self.geometry.tensors}
        size = sum(sizes.values())
        if self.used + size > self.budget:
            raise SegmentFull(
                f"the host tier has {self.budget - self.used} of {self.budget} bytes left, and a session takes {size}",
                fix="close a session, or give the engine a larger host=",
                segment="host",
                bytes=size,
                free=self.budget - self.used,
                capacity=self.budget,
            )
        pinned = self.slab.storage.device.type == "cuda"
        tensors = {name: torch.empty(count, dtype=torch.uint8, pin_memory=pinned) for name, count in sizes.items()}
        image = self._images[session.capability] = _Image(tensors, size)
        self.used += size
        return image

    def _tensors_at(self, session: Session) -> Iterator[tuple[StateTensor, int]]:
        """(tensor, byte offset in the arena) of each tensor of a session."""
        offsets = self.geometry.offsets(session.capacities)
        return ((tensor, offsets[tensor.name]) for tensor in self.geometry.tensors)


def _copy(source: torch.Tensor, target: torch.Tensor, start: int, end: int) -> None:
    """Copies bytes ``[start, end)`` of ``uint8[n]``, a chunk at a time."""
    for low in range(start, end, CHUNK_BYTES):
        high = min(low + CHUNK_BYTES, end)
        target[low:high].copy_(source[low:high])
