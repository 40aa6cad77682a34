"""Addresses by each policy and by arcs, worked out by hand."""

from itertools import pairwise

import pytest

from tests.layered import layer_problem
from tmmu.planner.ring.arcs import (
    Arcs,
    alap_arcs,
    capacity_arcs,
    first_fit,
    lookahead_arcs,
    nearest_conflicts,
    occupancy_masks,
    packings,
    peak_occupancy,
)
from tmmu.planner.ring.cyclic import choose_cyclic
from tmmu.planner.ring.layouts import candidate_layouts, extent, in_slots, skip_end
from tmmu.planner.ring.problem import StreamedBlocks, streamed_blocks


def all_streamed(sizes: list[int], compute: list[int] | None = None, copy: list[int] | None = None) -> StreamedBlocks:
    ones = [1] * len(sizes)
    return streamed_blocks(layer_problem(sizes, compute or ones, copy or ones), [True] * len(sizes))


@pytest.mark.parametrize(
    ("ring", "expected"),
    [
        (10, (0, 4, 0, 7, 0)),
        (12, (0, 4, 0, 7, 0)),
        (11, (0, 4, 0, 7, 0)),
        (21, (0, 4, 8, 15, 0)),
        (99, (0, 4, 8, 15, 17)),
    ],
)
def test_skip_end_starts_at_0_where_a_layer_would_cross(ring: int, expected: tuple[int, ...]) -> None:
    assert skip_end([4, 4, 7, 2, 9], ring) == expected


def test_skip_end_fills_a_ring_to_its_last_byte() -> None:
    assert skip_end([4, 4, 4], 8) == (0, 4, 0)


def test_slots_are_taken_in_turn() -> None:
    assert in_slots([4, 2, 7, 1], 2) == (0, 7, 0, 7)
    assert in_slots([4, 2, 7, 1], 3) == (0, 7, 14, 0)
    assert extent([4, 2, 7, 1], (0, 7, 0, 7)) == 9


def test_arcs_reach_back_over_the_start_of_the_pass() -> None:
    assert lookahead_arcs(all_streamed([1] * 4), 2).spans == ((-2, 1), (-1, 2), (0, 3), (1, 4))
    assert lookahead_arcs(all_streamed([1] * 4), 2, cut=1).spans == ((-2, 1), (1, 2), (1, 3), (1, 4))


def test_arcs_fill_what_fits_together() -> None:
    blocks = all_streamed([3, 1, 2, 2])
    assert nearest_conflicts(blocks, 4) == [-1, -1, 0, 1]
    assert capacity_arcs(blocks, 4).spans == ((0, 1), (0, 2), (1, 3), (2, 4))
    assert nearest_conflicts(blocks, 99) == [-4, -3, -2, -1]


def test_alap_arcs_copy_as_late_as_the_pass_time_allows() -> None:
    """Four layers, 5 ns to compute and 3 to copy, in a pass of 20 (limit: compute): copies end where visits start."""
    spans = alap_arcs(all_streamed([1] * 4, [5] * 4, [3] * 4), 20).spans
    assert [end - start for start, end in spans] == [8] * 4
    assert [after[1] - before[1] for before, after in pairwise(spans)] == [5] * 3


def test_occupancy_adds_up_where_arcs_meet() -> None:
    blocks = all_streamed([3, 5, 7])
    masks = occupancy_masks(blocks, Arcs(length=3, spans=((-1, 1), (0, 2), (1, 3))))
    assert peak_occupancy(blocks, masks) == 12
    assert masks[0] & masks[1]
    assert masks[0] & masks[2]
    assert masks[1] & masks[2]
    apart = occupancy_masks(blocks, Arcs(length=6, spans=((0, 2), (2, 4), (4, 6))))
    assert peak_occupancy(blocks, apart) == 7
    assert not apart[0] & apart[1]
    whole = occupancy_masks(blocks, Arcs(length=3, spans=((0, 3), (-1, 5), (1, 2))))
    assert peak_occupancy(blocks, whole) == 15


def test_first_fit_takes_the_lowest_gap() -> None:
    blocks = all_streamed([2, 4, 2, 3])
    assert first_fit(blocks, (1, 1, 1, 1), (0, 1, 2, 3)) == (0, 2, 6, 8)
    assert first_fit(blocks, (1, 3, 2, 2), (1, 0, 2, 3)) == (4, 0, 4, 6)


def least_slots(count: int, arcs: Arcs, depth: int) -> int:
    """The least extent of equal layers of one byte."""
    return min(extent([1] * count, address) for address in packings(all_streamed([1] * count), arcs, depth, count))


def test_odd_circle_of_equal_layers_takes_three_slots_and_a_cut_one_two() -> None:
    blocks = all_streamed([1] * 5)
    assert least_slots(5, lookahead_arcs(blocks, 1), 1) == 3
    assert least_slots(5, lookahead_arcs(blocks, 1, cut=0), 1) == 2


@pytest.mark.parametrize("count", range(2, 14))
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_equal_layers_take_as_few_slots_as_a_circle_allows(count: int, depth: int) -> None:
    """At most ``count // (depth + 1)`` arcs of ``depth + 1`` visits share an address."""
    if depth < count:
        arcs = lookahead_arcs(all_streamed([1] * count), depth)
        assert least_slots(count, arcs, depth) == -(-count // (count // (depth + 1)))


def test_candidates_of_a_smaller_room_are_among_those_of_a_larger() -> None:
    blocks = all_streamed([3, 1, 4, 1, 5, 2])
    before: set[tuple[int, ...]] = set()
    for room in range(5, 17):
        candidates = list(candidate_layouts(blocks, room, all_stream=True))
        assert len(set(candidates)) == len(candidates)
        assert all(extent([3, 1, 4, 1, 5, 2], address) <= room for address in candidates)
        assert before <= set(candidates)
        before = set(candidates)
    assert {skip_end([3, 1, 4, 1, 5, 2], ring) for ring in range(5, 17)} <= before
    assert {in_slots([3, 1, 4, 1, 5, 2], slots) for slots in (1, 2, 3)} <= before


@pytest.mark.parametrize(
    ("sizes", "compute", "room", "time"),
    [
        ((3, 2, 1, 4, 3, 3), (1, 2, 3, 5, 7, 5), 8, 46),
        ((2, 1, 1, 1, 2, 4, 3, 4), (0, 7, 1, 7, 4, 3, 6, 2), 7, 54),
        ((4, 1, 3, 1, 3), (2, 1, 2, 0, 3), 7, 29),
    ],
    ids=["cut open", "of a pace", "filling"],
)
def test_each_kind_of_arcs_is_the_best_somewhere(
    sizes: tuple[int, ...], compute: tuple[int, ...], room: int, time: int
) -> None:
    best = choose_cyclic(layer_problem(sizes, compute, [3 * size for size in sizes]), room, 0)
    assert best
    assert best.pass_time.ns == time
