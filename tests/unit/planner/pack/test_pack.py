"""Gaps, sweeps, lowest fit, orders, walks and layouts, with answers worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmmu.ir.problem import Problem
from tmmu.planner.layout import pack_with, place_packed, place_sequential, place_slots
from tmmu.planner.pack import orders
from tmmu.planner.pack.gaps import Gaps, SizedGaps
from tmmu.planner.pack.instance import prepare_instance
from tmmu.planner.pack.lowest import lowest_fit
from tmmu.planner.pack.sweep import sweep_best_fit, sweep_first_fit, sweep_two_ended
from tmmu.planner.pack.table import PACKERS
from tmmu.planner.slots import assign_logical_slots, max_live_bytes

# (birth, death, size): a and c leave holes of 4 and 2 around b when d and e come.
HOLES = [(0, 2, 4), (0, 9, 1), (0, 2, 2), (0, 9, 1), (2, 9, 2), (2, 9, 4)]


def problem(rows: list[tuple[int, int, int]]) -> Problem:
    return Problem(birth=tuple(r[0] for r in rows), death=tuple(r[1] for r in rows), size=tuple(r[2] for r in rows))


def gaps_after_deaths(rows: list[tuple[int, int, int]]) -> Gaps:
    """The gaps after the items were placed end to end and those that die at 2 were released."""
    gaps = SizedGaps(100)
    offsets = [gaps.take_lowest(size) for _, _, size in rows]
    for offset, (_, death, size) in zip(offsets, rows, strict=True):
        if death == 2:
            gaps.release(offset, size)
    return gaps


def test_gaps_take_lowest_tightest_and_highest() -> None:
    assert gaps_after_deaths(HOLES[:4]).start == [0, 5, 8]
    assert gaps_after_deaths(HOLES[:4]).take_lowest(2) == 0
    tight = gaps_after_deaths(HOLES[:4])
    assert isinstance(tight, SizedGaps)
    assert [tight.take_tightest(2), tight.take_tightest(4), tight.take_tightest(1)] == [5, 0, 8]
    assert gaps_after_deaths(HOLES[:4]).take_highest(2, 20) == 18
    assert gaps_after_deaths(HOLES[:4]).take_highest(2, 9) == 5
    assert gaps_after_deaths(HOLES[:4]).take_highest(50, 20) == 8


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_gaps_released_in_any_order_merge_into_one(sizes: list[int], random: object) -> None:
    gaps = SizedGaps(1000)
    taken = [(gaps.take_lowest(size), size) for size in sizes]
    random.shuffle(taken)  # type: ignore[attr-defined]
    for offset, size in taken:
        gaps.release(offset, size)
        assert all(end < start for end, start in zip(gaps.end, gaps.start[1:], strict=False))
        assert sorted(gaps.by_size) == gaps.by_size
        assert len(gaps.by_size) == len(gaps.start)
    assert (gaps.start, gaps.end) == ([0], [1000])


def test_sweeps_reuse_bytes_that_just_died() -> None:
    chain = problem([(0, 2, 4), (1, 3, 4), (2, 4, 4), (3, 5, 4)])
    instance = prepare_instance(chain, 8)
    for offsets in (sweep_first_fit(instance), sweep_best_fit(instance), sweep_first_fit(instance, backward=True)):
        assert sorted(set(offsets.tolist())) == [0, 4]


def test_two_ended_sweep_separates_short_from_long_lived() -> None:
    instance = prepare_instance(problem([(0, 1, 3), (0, 20, 5), (1, 2, 3), (1, 20, 5)]), 13)
    assert sweep_two_ended(instance, short=2).tolist() == [10, 0, 10, 5]


def test_lowest_fit_uses_gaps_below() -> None:
    instance = prepare_instance(problem([(0, 2, 4), (0, 2, 2), (2, 4, 3), (1, 3, 1)]), 7)
    assert instance.item.tolist() == [0, 1, 3, 2]
    assert lowest_fit(instance, np.array([0, 1, 2, 3])).tolist() == [0, 4, 6, 0]
    assert lowest_fit(instance, np.array([3, 2, 1, 0])).tolist() == [4, 0, 3, 0]


def test_orders_of_four_items() -> None:
    instance = prepare_instance(problem([(0, 9, 1), (1, 2, 8), (2, 4, 8), (3, 4, 2)]), 11)
    assert orders.by_size(instance).tolist() == [2, 1, 3, 0]
    assert orders.by_duration(instance).tolist() == [0, 2, 1, 3]
    assert orders.by_area(instance).tolist() == [2, 0, 1, 3]
    assert orders.by_birth(instance).tolist() == [0, 1, 2, 3]
    assert orders.pressure(instance).tolist() == [11, 9, 11, 11]
    assert orders.by_pressure(instance).tolist() == [0, 2, 3, 1]


def test_walk_finds_what_no_packer_does() -> None:
    rows = [(7, 10, 2), (0, 4, 2), (7, 11, 3), (0, 3, 3), (4, 6, 4), (1, 5, 3), (3, 6, 1), (7, 11, 3)]
    assert all(pack_with(packer, problem(rows)).peak > 8 for packer in PACKERS)
    placement = place_packed(problem(rows))
    assert (placement.peak, placement.bound, placement.proven) == (8, 8, True)
    assert placement.method.startswith("walk")


@pytest.mark.parametrize("rows", [[], [(0, 1, 0)], [(0, 1, 0), (0, 1, 5)]])
def test_empty_and_tiny_problems_are_packed(rows: list[tuple[int, int, int]]) -> None:
    placement = place_packed(problem(rows))
    assert placement.offset == (0,) * len(rows)
    assert placement.peak == placement.bound == sum(r[2] for r in rows)
    assert placement.proven


def test_sequential_and_slots_layouts() -> None:
    p = problem(HOLES)
    assert place_sequential(p).offset == (0, 4, 5, 7, 8, 10)
    assert place_sequential(p).peak == place_sequential(p).bound == 14
    slots = place_slots(p, assign_logical_slots(p))
    assert slots.bound == max_live_bytes(p) == 8
    assert (slots.peak, slots.proven) == (8, True)
