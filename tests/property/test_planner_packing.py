"""Conformance suite of all packers: no overlap, alignment, a true peak and a true bound."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import seeded
from tmmu.ir.problem import Placement, Problem
from tmmu.planner.layout import pack_with, place_packed
from tmmu.planner.pack.instance import prepare_instance
from tmmu.planner.pack.search import WALKS, walk_orders
from tmmu.planner.pack.table import PACKERS, Packer
from tmmu.planner.slots import max_live_bytes

SCALES = (1, 256, 2**55)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    rows = draw(st.lists(st.tuples(st.integers(0, 24), st.integers(1, 12), st.integers(0, 9)), max_size=40))
    scale = draw(st.sampled_from(SCALES))
    return Problem(
        birth=tuple(birth for birth, _, _ in rows),
        death=tuple(birth + length for birth, length, _ in rows),
        size=tuple(units * scale for _, _, units in rows),
        alignment=scale,
    )


def require_sound(problem: Problem, placement: Placement) -> None:
    ends = [offset + size for offset, size in zip(placement.offset, problem.size, strict=True)]
    assert placement.peak == max(ends, default=0)
    assert all(offset >= 0 and offset % problem.alignment == 0 for offset in placement.offset)
    assert all(type(offset) is int for offset in placement.offset)
    for i, j in combinations(range(len(problem)), 2):
        if problem.birth[i] < problem.death[j] and problem.birth[j] < problem.death[i]:
            apart = ends[i] <= placement.offset[j] or ends[j] <= placement.offset[i]
            assert apart or not (problem.size[i] and problem.size[j])
    live = [
        sum(n for n, b, d in zip(problem.size, problem.birth, problem.death, strict=True) if b <= t < d)
        for t in range(40)
    ]
    assert placement.bound == max(live) <= placement.peak
    assert placement.proven == (placement.peak == placement.bound)


@pytest.mark.parametrize("packer", PACKERS, ids=lambda packer: packer.name)
@settings(deadline=None, max_examples=60)
@given(problem=problems())
def test_every_packer_is_sound(packer: Packer, problem: Problem) -> None:
    require_sound(problem, pack_with(packer, problem))


@settings(deadline=None, max_examples=60)
@given(problems())
def test_place_packed_is_sound_and_no_worse_than_any_packer(problem: Problem) -> None:
    placement = place_packed(problem)
    require_sound(problem, placement)
    assert all(placement.peak <= pack_with(packer, problem).peak for packer in PACKERS)


@settings(deadline=None, max_examples=40)
@given(problems(), st.sampled_from(WALKS), st.integers(1, 5))
def test_walk_with_more_tries_is_never_worse(problem: Problem, step: object, tries: int) -> None:
    instance = prepare_instance(problem, max_live_bytes(problem))
    if len(instance):
        peaks = [int((walk_orders(instance, step, n) + instance.size).max()) for n in (1, tries, tries + 3)]  # type: ignore[arg-type]
        assert peaks == sorted(peaks, reverse=True)


@settings(deadline=None)
@given(problems())
def test_neighbors_are_the_items_that_overlap_in_time(problem: Problem) -> None:
    instance = prepare_instance(problem, max_live_bytes(problem))
    total = 0
    for index in range(len(instance)):
        born, dead = instance.birth[index], instance.death[index]
        together = [j for j in range(len(instance)) if instance.birth[j] < dead and born < instance.death[j]]
        assert sorted(instance.neighbors(index).tolist()) == together
        total += len(together)
    assert instance.overlaps == total


def test_packers_are_sound_beyond_one_block_of_neighbors() -> None:
    pick = seeded(11)
    birth = [pick(300) for _ in range(900)]
    problem = Problem(
        birth=tuple(birth),
        death=tuple(b + 1 + pick(40) for b in birth),
        size=tuple(64 * pick(30) for _ in birth),
        alignment=64,
    )
    instance = prepare_instance(problem, max_live_bytes(problem))
    assert len(instance.carry) > 3
    for packer in PACKERS:
        placement = pack_with(packer, problem)
        for i, j in combinations(range(len(birth)), 2):
            if problem.birth[i] < problem.death[j] and problem.birth[j] < problem.death[i]:
                low, high = (
                    max(placement.offset[i], placement.offset[j]),
                    min(placement.offset[i] + problem.size[i], placement.offset[j] + problem.size[j]),
                )
                assert low >= high
