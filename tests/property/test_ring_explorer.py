"""Sound schedules are right in every interleaving; with any one fence removed some interleaving is wrong."""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rings import (
    fence_points,
    issue_passes,
    ring_at,
    slot_assignments,
    slot_spans,
    submit_read,
    without,
)
from tmmu.ir.ring import Ring
from tmmu.runtime.device.explorer import ExplorerDevice
from tmmu.runtime.device.races import races
from tmmu.runtime.device.virtual import LinkSpeed, VirtualDevice
from tmmu.runtime.ring.fences import Fence
from tmmu.runtime.ring.loop import PlaceholderBlocks, StreamingLoop

pytestmark = pytest.mark.slow

DEPTHS = (1, 2, 99)
SINGLE = frozenset({Fence.COPY_LANDED, Fence.READERS_DONE, Fence.ARENA_CLEARED})
"""Fences of which each single one is needed, in every schedule that has it."""
Check = Callable[[ExplorerDevice], bool]


def slot_rings(layers: Sequence[int]) -> Iterator[Ring]:
    for count, depth in product(layers, DEPTHS):
        yield from (ring_at(slot_spans(slots), depth=depth) for slots in slot_assignments(count, 4))


def interval_rings(layers: int, units: int) -> Iterator[Ring]:
    """Blocks of any sizes at any addresses: one copy overwrites several blocks, or a part of one."""
    places = [(low, high) for low in range(units) for high in range(low + 1, units + 1)]
    for row, depth in product(product(places, repeat=layers), (2, 99)):
        yield ring_at(row, depth=depth)


def content_oracle_finds(device: ExplorerDevice) -> bool:
    return bool(device.explore(first_only=True).counterexamples)


def order_oracle_finds(device: ExplorerDevice) -> bool:
    return bool(races(device.log))


def require_sound(device: ExplorerDevice) -> int:
    """No interleaving is wrong or deadlocked; returns the number of states."""
    exploration = device.explore()
    assert exploration.complete
    assert not exploration.counterexamples, exploration.counterexamples[0]
    assert not exploration.deadlocked
    assert not races(device.log), races(device.log)[0]
    return exploration.states


def test_schedules_of_six_layers_on_four_slots_are_right_in_all_interleavings() -> None:
    states = [require_sound(issue_passes(ring)) for ring in slot_rings(range(1, 7))]
    assert len(states) == 3 * 261
    assert sum(states) > 100_000


def test_schedules_of_three_blocks_of_any_sizes_are_right_in_all_interleavings() -> None:
    assert sum(1 for ring in interval_rings(3, 4) if require_sound(issue_passes(ring))) == 2 * 10**3


@pytest.mark.parametrize("options", [{"prefetch": False}, {"poison": True}, {"piece": 1}], ids=str)
def test_schedules_without_prefetch_with_poison_and_in_pieces_are_right(options: dict[str, Any]) -> None:
    for ring in slot_rings(range(1, 5)):
        require_sound(issue_passes(ring, **options))
    for ring in interval_rings(2, 3):
        require_sound(issue_passes(ring, **options))


def test_copies_due_too_early_are_held_back() -> None:
    for slots in slot_assignments(5, 3):
        require_sound(issue_passes(ring_at(slot_spans(slots), early=3)))


@given(st.data())
def test_schedules_with_resident_and_repeated_blocks_are_right(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 6))
    slots = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    order = [*range(count), *data.draw(st.lists(st.integers(0, count - 1), max_size=4))]
    resident = [n for n in range(count) if slots.count(slots[n]) == 1]
    ring = ring_at(slot_spans(slots), order=order, depth=data.draw(st.integers(1, 9)), resident=resident[:1])
    require_sound(issue_passes(ring))


def require_detected(rings: Iterator[Ring], passes: int = 3) -> int:
    """Both oracles find a fault without each single fence, except in the last pass, after which nothing is read.

    Returns the number of fences.
    """
    count = 0
    for ring in rings:
        for point in fence_points(ring, passes):
            if point[0] in SINGLE and point[2] < passes - 1:
                device = issue_passes(ring, passes, fence_filter=without(point))
                assert order_oracle_finds(device), (point, ring)
                assert content_oracle_finds(device), (point, ring)
                count += 1
    return count


def test_both_oracles_notice_each_single_fence_removed() -> None:
    assert require_detected(slot_rings(range(1, 6))) > 3_000


def test_both_oracles_notice_each_single_fence_removed_between_blocks_of_any_sizes() -> None:
    assert require_detected(interval_rings(3, 4)) > 10_000


@pytest.mark.long
def test_both_oracles_notice_each_single_fence_removed_in_larger_schedules() -> None:
    assert require_detected(slot_rings((5, 6))) > 10_000


THREE = ring_at(slot_spans((0, 1, 0)))
ONE_RESIDENT = ring_at(((0, 1), (1, 2), (1, 2)), resident=[0])
OVER_TWO = ring_at(((0, 1), (1, 2), (0, 2)))


def switch_caller(loop: StreamingLoop, pass_index: int, visit: int) -> None:
    """The caller changes its stream in the middle of the second pass."""
    if (pass_index, visit) == (1, 1):
        loop.device.set_caller_stream(loop.device.create_stream("another"))  # type: ignore[attr-defined]


def closed_loop(**options: Any) -> ExplorerDevice:
    """A loop that is closed while copies for the next pass are under way."""
    device = ExplorerDevice()
    ring = ring_at(slot_spans((0, 1)))
    loop = StreamingLoop(device, ring, PlaceholderBlocks(ring), declare=True, **options)
    for visit in (0, 1, 0, 1):
        loop.enter(visit)
        loop.leave(visit)
    loop.close()
    return device


GATE: dict[Fence, Callable[..., ExplorerDevice]] = {
    Fence.ARENA_CLEARED: lambda **options: issue_passes(THREE, **options),
    Fence.RESIDENT_LOADED: lambda **options: issue_passes(ONE_RESIDENT, **options),
    Fence.COPY_LANDED: lambda **options: issue_passes(THREE, **options),
    Fence.LAST_PIECE: lambda **options: issue_passes(ring_at(((0, 2), (0, 2))), piece=1, **options),
    Fence.READERS_DONE: lambda **options: issue_passes(THREE, **options),
    Fence.NEWEST_READER: lambda **options: issue_passes(OVER_TWO, **options),
    Fence.READERS_ISSUED: lambda **options: issue_passes(ring_at(slot_spans((0, 1, 0, 1, 0)), early=2), **options),
    Fence.CALLER_SWITCH: lambda **options: issue_passes(THREE, before=switch_caller, **options),
    Fence.DRAIN: closed_loop,
}


@pytest.mark.parametrize("fence", Fence)
def test_both_oracles_notice_each_kind_of_fence_removed(fence: Fence) -> None:
    require_sound(GATE[fence]())
    device = GATE[fence](fence_filter=without(fence))
    assert order_oracle_finds(device)
    assert fence is Fence.DRAIN or content_oracle_finds(device)  # nothing is read after the release


def drain_link(loop: StreamingLoop, pass_index: int, visit: int) -> None:
    """The consumer waits for all copies issued so far, not for its visit's alone."""
    del pass_index, visit
    event = loop.device.create_event()
    loop.device.record(event, loop.copy_stream)
    loop.device.wait(loop.device.caller_stream(), event)


@pytest.mark.parametrize("layers", range(3, 10))
@pytest.mark.parametrize("slots", [2, 3, 4])
def test_slots_without_owners_go_wrong_when_layers_are_no_multiple_of_them(layers: int, slots: int) -> None:
    """Layer ``i`` in slot ``i % slots``, fetched ``slots`` visits ahead: the fault of vLLM #54975."""
    ring = ring_at(slot_spans([layer % slots for layer in range(layers)]), early=slots - 1)
    require_sound(issue_passes(ring))
    uneven = layers % slots != 0 and layers > slots
    device = issue_passes(ring, fence_filter=without(Fence.READERS_ISSUED))
    assert (content_oracle_finds(device), order_oracle_finds(device)) == (uneven, uneven)


@pytest.mark.parametrize(("layers", "slots"), [(3, 2), (5, 2), (5, 3), (7, 3), (6, 4)])
def test_slots_without_owners_go_wrong_without_a_race_when_the_link_is_drained(layers: int, slots: int) -> None:
    """Everything is ordered, and the wrong blocks are read: only the content oracle notices."""
    ring = ring_at(slot_spans([layer % slots for layer in range(layers)]), early=slots - 1)
    device = ExplorerDevice()
    loop = StreamingLoop(device, ring, PlaceholderBlocks(ring), fence_filter=without(Fence.READERS_ISSUED))
    for pass_index, visit in product(range(3), range(layers)):
        loop.enter(visit)
        drain_link(loop, pass_index, visit)
        submit_read(loop, pass_index, visit)
        loop.leave(visit)
        order_link_after_caller(loop)
    assert not order_oracle_finds(device)
    assert content_oracle_finds(device)


def order_link_after_caller(loop: StreamingLoop) -> None:
    """The link waits for the consumer's last task, as a link that is drained waits for its consumer."""
    event = loop.device.create_event()
    loop.device.record(event, loop.device.caller_stream())
    loop.device.wait(loop.copy_stream, event)


@pytest.mark.parametrize("fence", [Fence.COPY_LANDED, Fence.READERS_DONE])
def test_virtual_time_sees_mismatches_at_its_speeds(fence: Fence) -> None:
    ring = ring_at(slot_spans((0, 1, 0, 1)))

    def run(**options: Any) -> VirtualDevice:
        device: VirtualDevice = issue_passes(ring, device=VirtualDevice(LinkSpeed(10**9)), cost=3, **options)
        return device

    assert not run().mismatches()
    assert run(fence_filter=without(fence)).mismatches()


def test_restart_after_a_broken_pass_leaves_nothing_behind() -> None:
    ring = ring_at(slot_spans((0, 1, 0, 1, 0)))
    for stop in range(6):
        device = ExplorerDevice()
        loop = StreamingLoop(device, ring, PlaceholderBlocks(ring))
        for pass_index, visits in enumerate((5, stop, 5)):
            for visit in range(visits):
                loop.enter(visit)
                submit_read(loop, pass_index, visit)
                loop.leave(visit)
            if pass_index == 1:
                loop.restart()
        require_sound(device)
