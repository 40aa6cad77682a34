"""What holds of the caching allocator's model for all sequences of allocs, frees and empty caches."""

from itertools import pairwise
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from tmmu.eager.allocator import CachingAllocator
from tmmu.eager.allocator_blocks import SegmentState
from tmmu.eager.allocator_config import MIB, AllocatorConfig
from tmmu.eager.caching_allocator import AllocatorEvent, replay

SIZES: Final = (
    0, 1, 512, 700, MIB // 2 + 3, MIB, MIB + 1, 3 * MIB, 9 * MIB, 10 * MIB, 11 * MIB, 21 * MIB, 25 * MIB, 41 * MIB
)  # fmt: skip
CAPACITIES: Final = (None, 60 * MIB, 200 * MIB)

configs = st.builds(
    AllocatorConfig,
    max_split_bytes=st.sampled_from((None, 20 * MIB, 24 * MIB)),
    roundup_power2_divisions=st.sampled_from(((0,) * 16, (4,) * 16)),
    expandable_segments=st.booleans(),
    per_process_memory_fraction=st.sampled_from((1.0, 0.75)),
    garbage_collection_threshold=st.sampled_from((0.0, 0.3)),
)


@st.composite
def sequences(draw: st.DrawFn, most: int = 60) -> list[AllocatorEvent]:
    """Storages are numbered as they come; each is freed at most once, while it is live."""
    events: list[AllocatorEvent] = []
    live: list[int] = []
    for storage, choice in enumerate(draw(st.lists(st.integers(0, 99), max_size=most))):
        if choice < 45 or not live:
            nbytes, stream = draw(st.sampled_from(SIZES)), draw(st.sampled_from((0, 0, 0, 7)))
            events.append(AllocatorEvent(action="alloc", storage=storage, nbytes=nbytes, stream=stream))
            live.append(storage)
        elif choice < 95:
            events.append(AllocatorEvent(action="free", storage=live.pop(choice % len(live))))
        else:
            events.append(AllocatorEvent(action="empty_cache"))
    return events


def most_share(config: AllocatorConfig) -> float:
    """A fraction is held to the bytes that are looked for, not to the pages that are mapped for them, as in torch."""
    return 1.0 if config.expandable_segments else config.per_process_memory_fraction


def free_all(allocator: CachingAllocator) -> None:
    for segment in allocator.segment_states():
        for block in segment.blocks:
            allocator.free(block.storage)


@given(events=sequences(), config=configs, capacity=st.sampled_from(CAPACITIES))
def test_live_blocks_lie_apart_in_segments_that_are_reserved(
    events: list[AllocatorEvent], config: AllocatorConfig, capacity: int | None
) -> None:
    allocator = CachingAllocator(config, capacity=capacity)
    for event in events:
        if replay([event], allocator).failure is not None:
            break
        assert allocator.live <= allocator.allocated <= allocator.reserved
        assert capacity is None or allocator.reserved <= capacity * most_share(config)
        segments = allocator.segment_states()
        assert sum(segment.nbytes for segment in segments) == allocator.reserved
        assert sum(block.nbytes for segment in segments for block in segment.blocks) == allocator.allocated
        assert sum(block.request for segment in segments for block in segment.blocks) == allocator.live
        assert all(left.address + left.nbytes <= right.address for left, right in pairwise(segments))
        for segment in segments:
            assert_blocks_lie_apart(segment)


def assert_blocks_lie_apart(segment: SegmentState) -> None:
    position = segment.address
    for block in segment.blocks:
        assert position <= block.address
        assert block.request <= block.nbytes
        position = block.address + block.nbytes
    assert position <= segment.address + segment.nbytes


@given(events=sequences(), config=configs, capacity=st.sampled_from(CAPACITIES))
def test_merging_restores_whole_segments(
    events: list[AllocatorEvent], config: AllocatorConfig, capacity: int | None
) -> None:
    allocator = CachingAllocator(config, capacity=capacity)
    replay(events, allocator)
    free_all(allocator)
    assert (allocator.live, allocator.allocated) == (0, 0)
    free_blocks = [block for pool in allocator._ordered_pools() for block in pool.free]
    assert config.expandable_segments or all(block.is_whole for block in free_blocks)
    allocator.empty_cache()
    assert (allocator.reserved, allocator.segment_states()) == (0, ())
    assert allocator.segment_allocs >= allocator.segment_frees


@given(events=sequences(), config=configs, capacity=st.sampled_from(CAPACITIES))
def test_replay_is_deterministic(events: list[AllocatorEvent], config: AllocatorConfig, capacity: int | None) -> None:
    first, second = (replay(events, CachingAllocator(config, capacity=capacity)) for _ in range(2))
    assert first == second


@given(events=sequences(), cut=st.integers(0, 60))
def test_replay_from_the_segments_in_the_middle_goes_on_as_from_the_beginning(
    events: list[AllocatorEvent], cut: int
) -> None:
    whole = CachingAllocator()
    replay(events[:cut], whole)
    resumed = CachingAllocator(segments=whole.segment_states())
    live = {block.storage for segment in whole.segment_states() for block in segment.blocks}
    live |= {event.storage for event in events[cut:] if event.action == "alloc"}
    remaining = [event for event in events[cut:] if event.action == "empty_cache" or event.storage in live]
    ours, theirs = replay(remaining, resumed), replay(remaining, whole)
    assert (ours.reserved, ours.allocated, ours.live) == (theirs.reserved, theirs.allocated, theirs.live)
    assert ours.segment_allocs == theirs.segment_allocs


@given(events=sequences(), capacity=st.sampled_from((60 * MIB, 200 * MIB)))
def test_a_failed_alloc_leaves_no_segment_that_could_be_given_back(events: list[AllocatorEvent], capacity: int) -> None:
    allocator = CachingAllocator(capacity=capacity)
    if replay(events, allocator).failure is not None:
        reserved = allocator.reserved
        allocator.empty_cache()
        assert allocator.reserved == reserved
        assert all(segment.blocks for segment in allocator.segment_states())
