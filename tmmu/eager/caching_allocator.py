"""What a device reserves under torch's caching allocator for a sequence of allocs and frees, by a model of it.

The model is ``CachingAllocator`` (docs/spec/caching-allocator.md); here are events, their replay, and the peak of
storages with spans. The same events give the same figures; sizes are in bytes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from tmmu.eager.allocator import DEFAULT_CONFIG, CachingAllocator
from tmmu.eager.allocator_config import AllocatorConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorEvent:
    """One call of the allocator; ``storage`` is any number that names a storage while it lives."""

    action: Literal["alloc", "free", "empty_cache"]
    storage: int = 0
    nbytes: int = 0
    stream: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorUsage:
    """Bytes after each event of a replay, the address of each alloc, and what was taken of the device in all.

    ``failure`` is the position of the alloc for which there was no memory, the last event that was replayed.
    """

    live: tuple[int, ...]
    allocated: tuple[int, ...]
    reserved: tuple[int, ...]
    addresses: tuple[int, ...]
    segment_allocs: int
    segment_frees: int
    failure: int | None = None

    @property
    def peaks(self) -> tuple[int, int, int]:
        """The most live, allocated and reserved bytes after any event."""
        return max(self.live, default=0), max(self.allocated, default=0), max(self.reserved, default=0)


def replay(events: Iterable[AllocatorEvent], allocator: CachingAllocator) -> AllocatorUsage:
    """What ``events`` do to ``allocator``, which is left as it is after the last one, or after the first failure."""
    live: list[int] = []
    allocated: list[int] = []
    reserved: list[int] = []
    addresses: list[int] = []
    failure: int | None = None
    allocs, frees = allocator.segment_allocs, allocator.segment_frees
    for position, event in enumerate(events):
        address = _apply(event, allocator)
        live.append(allocator.live)
        allocated.append(allocator.allocated)
        reserved.append(allocator.reserved)
        if address is None:
            failure = position
            break
        if event.action == "alloc":
            addresses.append(address)
    return AllocatorUsage(
        live=tuple(live),
        allocated=tuple(allocated),
        reserved=tuple(reserved),
        addresses=tuple(addresses),
        segment_allocs=allocator.segment_allocs - allocs,
        segment_frees=allocator.segment_frees - frees,
        failure=failure,
    )


def _apply(event: AllocatorEvent, allocator: CachingAllocator) -> int | None:
    """The address of an alloc, or ``None`` where there was no memory; 0 for any other event."""
    match event.action:
        case "alloc":
            return allocator.allocate(event.storage, event.nbytes, event.stream)
        case "free":
            allocator.free(event.storage)
        case "empty_cache":
            allocator.empty_cache()
    return 0


class StorageSpans(Protocol):
    """Storages as columns: ``bytes``, the calls during which each is born and after which it dies, and its stream."""

    @property
    def bytes(self) -> Sequence[int]:
        """Of each storage."""

    @property
    def birth(self) -> Sequence[int]:
        """The operator call during which each is allocated."""

    @property
    def death(self) -> Sequence[int]:
        """The operator call after which each is freed."""

    @property
    def stream(self) -> Sequence[int]:
        """The stream on which each is allocated; empty where all are on one."""


def span_events(spans: StorageSpans) -> tuple[AllocatorEvent, ...]:
    """The allocs and frees of storages, the row of each as its name.

    Births during a call come before deaths after it; at one call, both are in order of birth, then of row.
    """
    rows, stream = range(len(spans.bytes)), spans.stream or (0,) * len(spans.bytes)
    allocs = [(spans.birth[row], 0, spans.birth[row], row) for row in rows]
    frees = [(spans.death[row], 1, spans.birth[row], row) for row in rows]
    return tuple(
        AllocatorEvent(action="free" if is_free else "alloc", storage=row, nbytes=spans.bytes[row], stream=stream[row])
        for _, is_free, _, row in sorted(allocs + frees)
    )


def reserved_peak(spans: StorageSpans, config: AllocatorConfig = DEFAULT_CONFIG) -> int:
    """The most bytes that a device of unlimited memory reserves for these storages, from an empty allocator on."""
    return replay(span_events(spans), CachingAllocator(config)).peaks[2]
