"""One test for each rule of segments that grow and shrink by pages, with the answer worked out by hand."""

from tests.unit.eager.allocators import FIRST, allocator, free, mib
from tmmu.eager.allocator_config import MIB

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
