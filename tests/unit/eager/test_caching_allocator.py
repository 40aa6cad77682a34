"""One test for each rule of the caching allocator's model, with the answer worked out by hand."""

from dataclasses import dataclass

import pytest

from tmmu.eager.allocator import CachingAllocator
from tmmu.eager.allocator_blocks import BlockState, SegmentState
from tmmu.eager.allocator_config import MIB, AllocatorConfig
from tmmu.eager.caching_allocator import AllocatorEvent, replay, reserved_peak
from tmmu.errors import InternalError

KIB = 1 << 10
FIRST = 2 * MIB
"""Where the first segment begins."""


def allocator(*mib: float, capacity: float | None = None, **settings: object) -> CachingAllocator:
    """Storages 0, 1, ... of so many MiB are allocated, in MiB of ``capacity``."""
    config = AllocatorConfig(**settings)  # type: ignore[arg-type]
    model = CachingAllocator(config, capacity=None if capacity is None else int(capacity * MIB))
    for storage, size in enumerate(mib):
        assert model.allocate(storage, int(size * MIB)) is not None
    return model


def free(model: CachingAllocator, *storages: int) -> None:
    for storage in storages:
        model.free(storage)


def mib(model: CachingAllocator) -> tuple[float, float, float]:
    return model.live / MIB, model.allocated / MIB, model.reserved / MIB


@pytest.mark.parametrize(("nbytes", "block"), [(1, 512), (511, 512), (512, 512), (513, 1024), (MIB + 1, MIB + 512)])
def test_sizes_are_rounded_to_512(nbytes: int, block: int) -> None:
    model = CachingAllocator()
    model.allocate(0, nbytes)
    assert (model.live, model.allocated) == (nbytes, block)


@pytest.mark.parametrize(
    ("nbytes", "segment"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB - 511, 10 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
        (12 * MIB, 12 * MIB),
        (13 * MIB, 14 * MIB),
    ],
)
def test_segments_are_of_2_and_20_mib_and_from_10_mib_on_of_their_own_size(nbytes: int, segment: int) -> None:
    model = CachingAllocator()
    model.allocate(0, nbytes)
    assert (model.reserved, model.segment_allocs) == (segment, 1)


def test_large_segments_can_be_of_another_size() -> None:
    assert allocator(2, large_segment_bytes=32 * MIB).reserved == 32 * MIB


def test_small_requests_never_use_the_large_pool() -> None:
    model = allocator(12)
    model.free(0)
    model.allocate(1, MIB)
    model.allocate(2, MIB)
    assert (model.reserved, model.segment_allocs) == (14 * MIB, 2)


def test_best_fit_is_the_smallest_block_that_suffices() -> None:
    model = allocator(16, 12, 14)
    free(model, 0, 1, 2)
    assert model.allocate(3, 13 * MIB) == FIRST + 28 * MIB
    assert model.segment_allocs == 3


def test_best_fit_takes_the_lowest_address_of_equal_blocks() -> None:
    model = allocator(12, 12, 12)
    free(model, 2, 0, 1)
    assert [model.allocate(storage, 12 * MIB) for storage in (3, 4)] == [FIRST, FIRST + 12 * MIB]


def test_small_blocks_are_split_down_to_512() -> None:
    model = CachingAllocator()
    for storage in range(4096):
        model.allocate(storage, 512)
    assert model.reserved == 2 * MIB
    model.allocate(4096, 1)
    assert model.reserved == 4 * MIB


@pytest.mark.parametrize(("nbytes", "block"), [(11 * MIB, 12 * MIB), (11 * MIB - 512, 11 * MIB - 512)])
def test_large_blocks_are_split_where_more_than_1_mib_is_left(nbytes: int, block: int) -> None:
    model = CachingAllocator()
    model.allocate(0, nbytes)
    assert (model.allocated, model.reserved) == (block, 12 * MIB)


def test_split_remainder_serves_the_next_request() -> None:
    model = allocator(9, 9, 2)
    assert mib(model) == (20, 20, 20)
    model.allocate(3, 2 * MIB)
    assert model.reserved == 40 * MIB


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)])
def test_free_neighbours_are_merged(order: tuple[int, ...]) -> None:
    model = allocator(6, 6, 8)
    free(model, *order)
    assert model.allocate(3, 9 * MIB) == FIRST
    assert model.allocate(4, 9 * MIB) == FIRST + 9 * MIB
    assert model.segment_allocs == 1


def test_blocks_of_two_segments_are_never_merged() -> None:
    model = allocator(12, 12)
    free(model, 0, 1)
    model.allocate(2, 24 * MIB)
    assert (model.reserved, model.segment_allocs) == (48 * MIB, 3)


def test_streams_have_pools_of_their_own() -> None:
    model = CachingAllocator()
    for stream in (0, 1):
        model.allocate(stream, 12 * MIB, stream)
        model.free(stream)
    assert model.segment_allocs == 2
    assert model.allocate(2, 12 * MIB, stream=1) == FIRST + 12 * MIB


def test_max_split_keeps_large_blocks_for_large_requests() -> None:
    model = allocator(30, max_split_bytes=20 * MIB)
    model.free(0)
    model.allocate(1, 12 * MIB)
    assert mib(model) == (12, 12, 42)
    assert model.allocate(2, 25 * MIB) == FIRST
    assert mib(model) == (37, 42, 42), "a block of max_split or more is not split"


def test_blocks_and_requests_of_max_split_itself_are_oversize() -> None:
    model = allocator(20, max_split_bytes=20 * MIB)
    model.free(0)
    model.allocate(1, 12 * MIB)
    assert mib(model) == (12, 12, 32)
    request = allocator(30, max_split_bytes=20 * MIB)
    request.free(0)
    assert request.allocate(1, 20 * MIB) == FIRST
    assert mib(request) == (20, 30, 30)


def test_blocks_above_max_split_must_be_nearly_filled() -> None:
    model = allocator(40, max_split_bytes=20 * MIB)
    model.free(0)
    model.allocate(1, 20 * MIB)
    assert mib(model) == (20, 20, 60), "20 MiB above the request is too much"
    assert model.allocate(2, 20 * MIB + 512) == FIRST
    wider = allocator(40, max_split_bytes=20 * MIB, max_non_split_rounding_bytes=21 * MIB)
    wider.free(0)
    assert wider.allocate(1, 20 * MIB) == FIRST


def test_shortage_releases_one_oversize_block_that_suffices() -> None:
    model = allocator(30, 32, capacity=64, max_split_bytes=20 * MIB)
    free(model, 0, 1)
    model.allocate(2, 12 * MIB)
    assert (model.reserved, model.segment_frees) == (44 * MIB, 1), "the smallest that suffices, 30 MiB"


def test_shortage_releases_the_largest_oversize_blocks_until_they_suffice() -> None:
    model = allocator(22, 26, 24, capacity=72, max_split_bytes=20 * MIB)
    free(model, 0, 1, 2)
    model.allocate(3, 46 * MIB)
    assert (model.reserved, model.segment_frees) == (22 * MIB + 46 * MIB, 2)


@pytest.mark.parametrize(
    ("divisions", "nbytes", "block"),
    [
        (4, 1200 * KIB, 1280 * KIB),
        (4, 1280 * KIB, 1280 * KIB),
        (4, 1281 * KIB, 1536 * KIB),
        (8, 1200 * KIB, 1280 * KIB),
        (4, 2000 * KIB, 2048 * KIB),
        (2, 1025, 1536),
        (2, 1024, 1024),
        (4, 1025, 1536),
        (1, 1200 * KIB + 1, 1200 * KIB + 512),
        (0, 1200 * KIB + 1, 1200 * KIB + 512),
    ],
)
def test_roundup_divides_the_space_between_powers_of_two(divisions: int, nbytes: int, block: int) -> None:
    model = CachingAllocator(AllocatorConfig(roundup_power2_divisions=(divisions,) * 16))
    model.allocate(0, nbytes)
    assert (model.live, model.allocated) == (nbytes, block)


def test_roundup_is_told_apart_by_powers_of_two_of_mib() -> None:
    config = AllocatorConfig(roundup_power2_divisions=(0, 0, 2, *(0,) * 13))
    sizes = (3 * MIB + 512, 5 * MIB, 9 * MIB)
    model = CachingAllocator(config)
    blocks = []
    for storage, nbytes in enumerate(sizes):
        before = model.allocated
        model.allocate(storage, nbytes)
        blocks.append(model.allocated - before)
    assert blocks == [3 * MIB + 512, 6 * MIB, 9 * MIB]
    huge = CachingAllocator(AllocatorConfig(roundup_power2_divisions=(*(0,) * 15, 2)))
    huge.allocate(0, 129 * 2**30)
    assert huge.allocated == 192 * 2**30, "the last interval holds all sizes above"


def test_garbage_collection_releases_old_blocks_above_its_threshold() -> None:
    model = allocator(capacity=100, per_process_memory_fraction=0.9, garbage_collection_threshold=0.4)
    for storage, size in enumerate((20, 24)):
        model.allocate(storage, size * MIB)
        model.free(storage)
    model.allocate(2, 30 * MIB)
    assert (model.reserved, model.segment_frees) == (54 * MIB, 1), "44 of 36 MiB: of ages 2 and 1, the first goes"


def test_garbage_of_average_age_is_released() -> None:
    model = allocator(20, capacity=100, per_process_memory_fraction=0.9, garbage_collection_threshold=0.1)
    model.free(0)
    model.allocate(1, 30 * MIB)
    assert (model.reserved, model.segment_frees) == (30 * MIB, 1)


def test_garbage_is_collected_under_a_memory_fraction_alone() -> None:
    model = allocator(capacity=100, garbage_collection_threshold=0.4)
    for storage, size in enumerate((20, 24)):
        model.allocate(storage, size * MIB)
        model.free(storage)
    model.allocate(2, 30 * MIB)
    assert (model.reserved, model.segment_frees) == (74 * MIB, 0)


def test_empty_cache_gives_back_segments_without_an_allocated_block() -> None:
    model = allocator(9, 9, 12, 0.5, 0.5)
    free(model, 0, 2, 3, 4)
    model.empty_cache()
    assert (model.reserved, model.segment_frees) == (20 * MIB, 2)
    model.free(1)
    model.empty_cache()
    assert (model.reserved, model.segment_allocs, model.segment_frees) == (0, 3, 3)


def test_shortage_gives_cached_segments_back_and_retries() -> None:
    model = allocator(12, 14, capacity=40)
    free(model, 0, 1)
    assert model.allocate(2, 30 * MIB) is not None
    assert (model.reserved, model.segment_frees) == (30 * MIB, 2)


def test_alloc_without_memory_fails_after_the_cache_is_empty() -> None:
    model = allocator(12, 14, capacity=40)
    model.free(0)
    assert model.allocate(2, 28 * MIB) is None
    assert (model.live, model.allocated, model.reserved) == (14 * MIB, 14 * MIB, 14 * MIB)
    assert model.allocate(2, 26 * MIB) is not None


def test_memory_fraction_is_refused_before_the_device_is() -> None:
    model = allocator(30, capacity=100, per_process_memory_fraction=0.5)
    assert model.allocate(1, 22 * MIB) is None
    assert model.allocate(1, 20 * MIB) is not None


def test_storages_of_no_bytes_have_no_block() -> None:
    model = CachingAllocator()
    assert model.allocate(0, 0) == 0
    model.free(0)
    assert (model.reserved, model.segment_allocs) == (0, 0)


def test_misuse_is_an_internal_error() -> None:
    model = allocator(1)
    with pytest.raises(InternalError, match="storage 0 of 5 bytes cannot be allocated"):
        model.allocate(0, 5)
    with pytest.raises(InternalError, match="of -1 bytes"):
        model.allocate(1, -1)
    with pytest.raises(InternalError, match="storage 7 is freed, and is not live"):
        model.free(7)


def test_segments_from_before_hold_their_blocks_and_gaps() -> None:
    blocks = (
        BlockState(storage=-1, address=40 * MIB, nbytes=2 * MIB, request=2 * MIB - 1),
        BlockState(storage=-2, address=50 * MIB, nbytes=3 * MIB, request=3 * MIB),
    )
    segment = SegmentState(address=36 * MIB, nbytes=20 * MIB, is_small=False, blocks=blocks)
    model = CachingAllocator(segments=(segment,))
    assert (model.live, *mib(model)[1:], model.segment_allocs) == (5 * MIB - 1, 5, 20, 0)
    assert model.segment_states() == (segment,)
    assert [model.allocate(i, size * MIB) for i, size in enumerate((3, 4, 8))] == [53 * MIB, 36 * MIB, 42 * MIB]
    free(model, -1, -2, 0, 1, 2)
    assert model.segment_states() == (SegmentState(address=36 * MIB, nbytes=20 * MIB, is_small=False),)
    model.allocate(9, 12 * MIB)
    model.allocate(10, 12 * MIB)
    assert [state.address for state in model.segment_states()] == [36 * MIB, 56 * MIB], "new ones lie above"


@pytest.mark.parametrize(("address", "nbytes"), [(2 * MIB, MIB), (4 * MIB, 21 * MIB), (30 * MIB, MIB)])
def test_block_outside_of_its_segment_is_refused(address: int, nbytes: int) -> None:
    block = BlockState(storage=0, address=address, nbytes=nbytes, request=nbytes)
    segment = SegmentState(address=4 * MIB, nbytes=20 * MIB, is_small=False, blocks=(block,))
    with pytest.raises(InternalError, match="does not lie in a free part of segment"):
        CachingAllocator(segments=(segment,))


EXPANDABLE = {"expandable_segments": True}


def test_expandable_segment_grows_by_pages_of_20_mib() -> None:
    model = allocator(12, **EXPANDABLE)
    assert mib(model) == (12, 12, 20)
    assert model.allocate(1, 12 * MIB) == FIRST + 12 * MIB
    assert (*mib(model), model.segment_allocs) == (24, 24, 40, 2)


def test_expandable_segment_maps_only_what_free_bytes_at_its_end_lack() -> None:
    model = allocator(12, 25, **EXPANDABLE)
    assert (*mib(model), model.segment_allocs) == (37, 37, 40, 2)


def test_expandable_segment_of_the_small_pool_grows_by_pages_of_2_mib() -> None:
    model = allocator(1, 0.75, 0.5, **EXPANDABLE)
    assert (*mib(model), model.segment_allocs) == (2.25, 2.25, 4, 2)


def test_expandable_blocks_are_split_down_to_512_in_the_large_pool() -> None:
    model = allocator(20 - 1 / 2048, **EXPANDABLE)
    model.free(0)
    assert model.allocate(1, 19 * MIB) == FIRST
    assert mib(model) == (19, 19, 20)


def test_expandable_segment_serves_what_would_need_two_segments() -> None:
    sizes = (12, 14, 26)
    plain, model = allocator(*sizes[:2]), allocator(*sizes[:2], **EXPANDABLE)
    for each in (plain, model):
        free(each, 0, 1)
        each.allocate(2, 26 * MIB)
    assert (plain.reserved, model.reserved) == (52 * MIB, 40 * MIB)


def test_best_fit_prefers_a_block_that_cannot_grow() -> None:
    model = allocator(12, 18, **EXPANDABLE)
    model.free(0)
    assert model.allocate(2, 8 * MIB) == FIRST, "12 MiB, though 10 MiB are free at the end, which can grow"


def test_empty_cache_unmaps_whole_free_pages() -> None:
    model = allocator(30, 10, 20, **EXPANDABLE)
    free(model, 0, 2)
    model.empty_cache()
    assert (*mib(model), model.segment_frees) == (10, 10, 20, 2), "10 MiB share a page with what is live"
    states = model.segment_states()
    assert [(state.address - FIRST, state.nbytes) for state in states] == [(20 * MIB, 20 * MIB)]
    model.free(1)
    model.empty_cache()
    assert (model.reserved, model.segment_states()) == (0, ())
    address = model.allocate(3, 20 * MIB)
    assert address is not None
    assert address > FIRST + 100 * MIB, "a segment of which nothing is mapped gave its addresses back"


def test_unmapped_neighbours_are_mapped_as_one() -> None:
    model = allocator(20, 20, 20, **EXPANDABLE)
    for storage in (0, 1):
        model.free(storage)
        model.empty_cache()
    assert model.allocate(3, 40 * MIB) == FIRST
    assert (model.segment_allocs, model.segment_frees) == (4, 2)


def test_addresses_of_an_expandable_segment_are_nine_eighths_of_the_device() -> None:
    model = allocator(*(20,) * 8, capacity=160, **EXPANDABLE)
    free(model, 3, 7)
    model.empty_cache()
    assert model.allocate(8, 40 * MIB) == FIRST + 140 * MIB, "pages 7 and 8 of 9"
    free(model, 0, 2)
    model.empty_cache()
    address = model.allocate(9, 60 * MIB)
    assert address is None, "160 MiB less 120 that are live"
    free(model, 6)
    assert model.allocate(9, 60 * MIB) == FIRST + 180 * MIB, "no three pages in a row: a second segment"


def test_unmapped_pages_are_mapped_again_at_the_lowest_address_with_room() -> None:
    model = allocator(20, 20, 20, **EXPANDABLE)
    model.free(1)
    model.empty_cache()
    assert model.allocate(3, 30 * MIB) == FIRST + 60 * MIB
    assert model.reserved == 80 * MIB
    assert model.allocate(4, 20 * MIB) == FIRST + 20 * MIB
    assert model.reserved == 100 * MIB


def test_row_of_free_and_unmapped_pages_is_mapped_together() -> None:
    model = allocator(20, 20, 10, 10, 20, **EXPANDABLE)
    free(model, 1)
    model.empty_cache()
    free(model, 2)
    assert model.allocate(5, 25 * MIB) == FIRST + 20 * MIB, "20 MiB that are mapped again, and 10 free behind them"
    assert model.reserved == 80 * MIB


def test_expandable_segment_without_memory_is_unmapped_and_retried() -> None:
    model = allocator(20, 20, 20, capacity=60, **EXPANDABLE)
    model.free(0)
    assert model.allocate(3, 30 * MIB) is None, "60 MiB of the device, of which 20 can be unmapped: 2 pages are needed"
    assert model.reserved == 40 * MIB
    model.free(1)
    assert model.allocate(4, 30 * MIB) == FIRST
    assert model.reserved == 60 * MIB


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


def test_reserved_peak_follows_the_settings() -> None:
    spans = Spans((12 * MIB, 14 * MIB, 26 * MIB), (0, 1, 2), (1, 1, 2))
    assert reserved_peak(spans) == 52 * MIB
    assert reserved_peak(spans, AllocatorConfig(expandable_segments=True)) == 40 * MIB
