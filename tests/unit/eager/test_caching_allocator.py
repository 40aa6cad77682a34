"""What the model of the caching allocator reserves after each event, and at most, worked out by hand."""

from dataclasses import dataclass

import pytest

from tests.unit.eager.allocators import FIRST
from tmmu.eager.allocator import CachingAllocator
from tmmu.eager.allocator_config import MIB, AllocatorConfig
from tmmu.eager.caching_allocator import AllocatorEvent, replay, reserved_peak


def test_replay_tells_bytes_after_each_event() -> None:
    events = (
        AllocatorEvent(action="alloc", storage=5, nbytes=12 * MIB),
        AllocatorEvent(action="alloc", storage=6, nbytes=1),
        AllocatorEvent(action="free", storage=5),
        AllocatorEvent(action="empty_cache"),
        AllocatorEvent(action="alloc", storage=5, nbytes=11 * MIB),
    )
    usage = replay(events, CachingAllocator())
    assert usage.live == (12 * MIB, 12 * MIB + 1, 1, 1, 11 * MIB + 1)
    assert usage.allocated == (12 * MIB, 12 * MIB + 512, 512, 512, 12 * MIB + 512)
    assert usage.reserved == (12 * MIB, 14 * MIB, 14 * MIB, 2 * MIB, 14 * MIB)
    assert usage.addresses == (FIRST, FIRST + 12 * MIB, FIRST + 14 * MIB)
    assert (usage.segment_allocs, usage.segment_frees, usage.failure) == (3, 1, None)
    assert usage.peaks == (12 * MIB + 1, 12 * MIB + 512, 14 * MIB)
    failed = replay(events, CachingAllocator(capacity=13 * MIB))
    assert (failed.failure, len(failed.reserved)) == (1, 2)


@dataclass(frozen=True)
class Spans:
    bytes: tuple[int, ...]
    birth: tuple[int, ...]
    death: tuple[int, ...]
    stream: tuple[int, ...] = ()


@pytest.mark.parametrize(
    ("sizes", "birth", "death", "peak"),
    [
        ((12, 12), (0, 1), (1, 2), 24),
        ((12, 12), (0, 1), (0, 2), 12),
        ((12, 12), (3, 3), (3, 3), 24),
        ((12, 12), (-1, 0), (9, 9), 24),
        ((), (), (), 0),
    ],
)
def test_reserved_peak_counts_births_of_a_call_before_its_deaths(
    sizes: tuple[int, ...], birth: tuple[int, ...], death: tuple[int, ...], peak: int
) -> None:
    assert reserved_peak(Spans(tuple(size * MIB for size in sizes), birth, death)) == peak * MIB


def test_reserved_peak_allocates_in_order_of_row() -> None:
    spans = Spans((18 * MIB, 9 * MIB, 18 * MIB, 30 * MIB), (0, 1, 1, 2), (0, 1, 1, 2))
    rows_swapped = Spans((18 * MIB, 18 * MIB, 9 * MIB, 30 * MIB), (0, 1, 1, 2), (0, 1, 1, 2))
    assert reserved_peak(spans) == (18 + 18 + 30) * MIB, "9 MiB split the cached block, 18 need another"
    assert reserved_peak(rows_swapped) == (18 + 20 + 30) * MIB


def test_what_is_free_on_a_stream_serves_that_stream_alone() -> None:
    sizes, birth, death = (12 * MIB, 12 * MIB, 12 * MIB), (0, 1, 2), (0, 1, 2)
    reserved = [reserved_peak(Spans(sizes, birth, death, stream)) for stream in ((), (0, 0, 0), (0, 1, 0), (2, 1, 0))]
    assert reserved == [12 * MIB, 12 * MIB, 24 * MIB, 36 * MIB]


def test_reserved_peak_follows_the_settings() -> None:
    spans = Spans((12 * MIB, 14 * MIB, 26 * MIB), (0, 1, 2), (1, 1, 2))
    assert reserved_peak(spans) == 52 * MIB
    assert reserved_peak(spans, AllocatorConfig(expandable_segments=True)) == 40 * MIB
