"""One test for each rule by which blocks are rounded, found, split, merged and given back, worked out by hand."""

import pytest

from tests.unit.eager.allocators import FIRST, KIB, allocator, free, mib
from tmmu.eager.allocator import CachingAllocator
from tmmu.eager.allocator_blocks import BlockState, SegmentState
from tmmu.eager.allocator_config import MIB, AllocatorConfig
from tmmu.errors import InternalError


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
