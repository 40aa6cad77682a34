"""Every sound schedule is right in every interleaving, and with any one fence gone some interleaving is wrong."""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rings import Placed, Point, assignments, compute, in_slots, issued, lacking, points_of, ring_at, without
from tmmu.ir.ring import Ring
from tmmu.runtime.device.explorer import ExplorerDevice
from tmmu.runtime.device.races import races
from tmmu.runtime.device.virtual import LinkSpeed, VirtualDevice
from tmmu.runtime.ring.fences import Fence
from tmmu.runtime.ring.loop import PlaceholderBlocks, StreamingLoop

DEPTHS = (1, 2, 99)
SINGLE = frozenset({Fence.COPY_LANDED, Fence.READERS_DONE, Fence.ARENA_CLEARED})
"""Fences of which each single one is needed, in every schedule that has it."""
Check = Callable[[ExplorerDevice], bool]


def slot_rings(layers: Sequence[int]) -> Iterator[Ring]:
    for count, depth in product(layers, DEPTHS):
        yield from (ring_at(in_slots(slots), depth=depth) for slots in assignments(count, 4))


def interval_rings(layers: int, units: int) -> Iterator[Ring]:
    """Blocks of any sizes at any addresses: one copy overwrites several blocks, or a part of one."""
    places = [(low, high) for low in range(units) for high in range(low + 1, units + 1)]
    for row, depth in product(product(places, repeat=layers), (2, 99)):
        yield ring_at(row, depth=depth)


def tags_find(device: ExplorerDevice) -> bool:
    return bool(device.explore(first_only=True).counterexamples)


def order_finds(device: ExplorerDevice) -> bool:
    return bool(races(device.log))


def require_sound(device: ExplorerDevice) -> int:
    """No interleaving is wrong and none is stuck; how many states that took."""
    found = device.explore()
    assert found.complete
    assert not found.counterexamples, found.counterexamples[0]
    assert not found.deadlocked
    assert not races(device.log), races(device.log)[0]
    return found.states


def test_every_schedule_of_up_to_six_layers_on_up_to_four_slots_is_right_in_all_interleavings() -> None:
    states = [require_sound(issued(ring)) for ring in slot_rings(range(1, 7))]
    assert len(states) == 3 * 261
    assert sum(states) > 100_000


def test_so_is_every_schedule_of_three_blocks_of_any_sizes() -> None:
    assert sum(1 for ring in interval_rings(3, 4) if require_sound(issued(ring))) == 2 * 10**3


@pytest.mark.parametrize("options", [{"prefetch": False}, {"poison": True}, {"piece": 1}], ids=str)
def test_so_is_each_of_them_without_prefetch_with_poison_and_in_pieces(options: dict[str, Any]) -> None:
    for ring in slot_rings(range(1, 5)):
        require_sound(issued(ring, **options))
    for ring in interval_rings(2, 3):
        require_sound(issued(ring, **options))


def test_a_copy_that_the_schedule_would_issue_too_early_is_held_back() -> None:
    for slots in assignments(5, 3):
        require_sound(issued(ring_at(in_slots(slots), ahead=3)))


@given(st.data())
def test_so_are_longer_ones_with_blocks_that_stay_and_blocks_that_come_twice(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 6))
    slots = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    order = [*range(count), *data.draw(st.lists(st.integers(0, count - 1), max_size=4))]
    resident = [n for n in range(count) if slots.count(slots[n]) == 1]
    ring = ring_at(in_slots(slots), order=order, depth=data.draw(st.integers(1, 9)), resident=resident[:1])
    require_sound(issued(ring))


def gate(ring: Ring, passes: int = 3, kinds: frozenset[Fence] = SINGLE) -> Iterator[tuple[Point, ExplorerDevice]]:
    """The ring without each single fence in turn; the last pass is left out, after which nobody reads."""
    for point in points_of(ring, passes):
        if point[0] in kinds and point[2] < passes - 1:
            yield point, issued(ring, passes, fence_filter=without(point))


def missed(rings: Iterator[Ring]) -> int:
    """Both oracles find something wrong without each fence; how many that were."""
    count = 0
    for ring in rings:
        for point, device in gate(ring):
            assert order_finds(device), (point, ring)
            assert tags_find(device), (point, ring)
            count += 1
    return count


def test_both_oracles_notice_when_any_single_fence_is_gone() -> None:
    assert missed(slot_rings(range(1, 6))) > 3_000


@pytest.mark.slow
def test_they_do_in_larger_schedules() -> None:
    assert missed(slot_rings((5, 6))) > 10_000
    assert missed(interval_rings(3, 4)) > 10_000


STAYS = ring_at(((0, 1), (1, 2), (1, 2)), resident=[0])
OVER_TWO: tuple[Placed, ...] = ((0, 1), (1, 2), (0, 2))


def handed_over(loop: StreamingLoop, turn: int, visit: int) -> None:
    """The caller goes on on another stream in the middle of the second pass."""
    if (turn, visit) == (1, 1):
        loop.device.set_caller_stream(loop.device.create_stream("another"))  # type: ignore[attr-defined]


def closed(**options: Any) -> ExplorerDevice:
    """A ring that is closed with copies for the next pass under way."""
    device = ExplorerDevice()
    ring = ring_at(in_slots((0, 1)))
    loop = StreamingLoop(device, ring, PlaceholderBlocks(ring), declare=True, **options)
    for visit in (0, 1, 0, 1):
        loop.enter(visit)
        loop.leave(visit)
    loop.close()
    return device


GATE: dict[Fence, Callable[..., ExplorerDevice]] = {
    Fence.ARENA_CLEARED: lambda **options: issued(ring_at(in_slots((0, 1, 0))), **options),
    Fence.RESIDENT_LOADED: lambda **options: issued(STAYS, **options),
    Fence.COPY_LANDED: lambda **options: issued(ring_at(in_slots((0, 1, 0))), **options),
    Fence.LAST_PIECE: lambda **options: issued(ring_at(((0, 2), (0, 2))), piece=1, **options),
    Fence.READERS_DONE: lambda **options: issued(ring_at(in_slots((0, 1, 0))), **options),
    Fence.NEWEST_READER: lambda **options: issued(ring_at(OVER_TWO), **options),
    Fence.READERS_ISSUED: lambda **options: issued(ring_at(in_slots((0, 1, 0, 1, 0)), ahead=2), **options),
    Fence.CALLER_SWITCH: lambda **options: issued(ring_at(in_slots((0, 1, 0))), before=handed_over, **options),
    Fence.DRAIN: closed,
}


@pytest.mark.parametrize("fence", Fence)
def test_both_oracles_notice_when_a_kind_of_fence_is_gone(fence: Fence) -> None:
    require_sound(GATE[fence]())
    device = GATE[fence](fence_filter=lacking(fence))
    assert order_finds(device)
    assert fence is Fence.DRAIN or tags_find(device)  # nobody reads what is given back


def draining(loop: StreamingLoop, turn: int, visit: int) -> None:
    """The consumer waits for all that the link was given, not for its own copy alone."""
    del turn, visit
    event = loop.device.create_event()
    loop.device.record(event, loop.copy_stream)
    loop.device.wait(loop.device.caller_stream(), event)


@pytest.mark.parametrize("layers", range(3, 10))
@pytest.mark.parametrize("slots", [2, 3, 4])
def test_slots_that_belong_to_nobody_go_wrong_when_layers_are_no_multiple_of_them(layers: int, slots: int) -> None:
    """Layer ``i`` in slot ``i % slots``, fetched ``slots`` visits ahead: the fault of vLLM #54975."""
    ring = ring_at(in_slots([layer % slots for layer in range(layers)]), ahead=slots - 1)
    require_sound(issued(ring))
    uneven = layers % slots != 0 and layers > slots
    device = issued(ring, fence_filter=lacking(Fence.READERS_ISSUED))
    assert (tags_find(device), order_finds(device)) == (uneven, uneven)


@pytest.mark.parametrize(("layers", "slots"), [(3, 2), (5, 2), (5, 3), (7, 3), (6, 4)])
def test_they_go_wrong_without_a_race_when_the_consumer_drains_the_link(layers: int, slots: int) -> None:
    """Nothing is unordered any more, and the wrong blocks are read: only the second oracle sees it."""
    ring = ring_at(in_slots([layer % slots for layer in range(layers)]), ahead=slots - 1)
    device = ExplorerDevice()
    loop = StreamingLoop(device, ring, PlaceholderBlocks(ring), fence_filter=lacking(Fence.READERS_ISSUED))
    for turn, visit in product(range(3), range(layers)):
        loop.enter(visit)
        draining(loop, turn, visit)
        compute(loop, turn, visit)
        loop.leave(visit)
        settle_link(loop)
    assert not order_finds(device)
    assert tags_find(device)


def settle_link(loop: StreamingLoop) -> None:
    """The link waits for the consumer's last step, as one that is drained does for whoever drains it."""
    event = loop.device.create_event()
    loop.device.record(event, loop.device.caller_stream())
    loop.device.wait(loop.copy_stream, event)


@pytest.mark.parametrize("fence", [Fence.COPY_LANDED, Fence.READERS_DONE])
def test_virtual_time_sees_what_goes_wrong_at_its_speeds(fence: Fence) -> None:
    ring = ring_at(in_slots((0, 1, 0, 1)))

    def run(**options: Any) -> VirtualDevice:
        found: VirtualDevice = issued(ring, device=VirtualDevice(LinkSpeed(10**9)), cost=3, **options)
        return found

    assert not run().mismatches()
    assert run(fence_filter=lacking(fence)).mismatches()


def test_a_pass_that_broke_off_leaves_nothing_behind() -> None:
    ring = ring_at(in_slots((0, 1, 0, 1, 0)))
    for stop in range(6):
        device = ExplorerDevice()
        loop = StreamingLoop(device, ring, PlaceholderBlocks(ring))
        for turn, visits in enumerate((5, stop, 5)):
            for visit in range(visits):
                loop.enter(visit)
                compute(loop, turn, visit)
                loop.leave(visit)
            if turn == 1:
                loop.restart()
        require_sound(device)
