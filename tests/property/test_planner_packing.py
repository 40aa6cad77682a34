"""The conformance suite of every packer: no overlap, aligned, tight peak, and a bound that is one."""

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


def demand_sound(problem: Problem, found: Placement) -> None:
    ends = [offset + size for offset, size in zip(found.offset, problem.size, strict=True)]
    assert found.peak == max(ends, default=0)
    assert all(offset >= 0 and offset % problem.alignment == 0 for offset in found.offset)
    assert all(type(offset) is int for offset in found.offset)
    for i, j in combinations(range(len(problem)), 2):
        if problem.birth[i] < problem.death[j] and problem.birth[j] < problem.death[i]:
            apart = ends[i] <= found.offset[j] or ends[j] <= found.offset[i]
            assert apart or not (problem.size[i] and problem.size[j])
    live = [
        sum(n for n, b, d in zip(problem.size, problem.birth, problem.death, strict=True) if b <= t < d)
        for t in range(40)
    ]
    assert found.bound == max(live) <= found.peak
    assert found.proven == (found.peak == found.bound)


@pytest.mark.parametrize("packer", PACKERS, ids=lambda packer: packer.name)
@settings(deadline=None, max_examples=60)
@given(problem=problems())
def test_every_packer_is_sound(packer: Packer, problem: Problem) -> None:
    demand_sound(problem, pack_with(packer, problem))


@settings(deadline=None, max_examples=60)
@given(problems())
def test_the_best_of_them_is_sound_and_no_worse_than_any(problem: Problem) -> None:
    found = place_packed(problem)
    demand_sound(problem, found)
    assert all(found.peak <= pack_with(packer, problem).peak for packer in PACKERS)


@settings(deadline=None, max_examples=40)
@given(problems(), st.sampled_from(WALKS), st.integers(1, 5))
def test_more_tries_are_never_worse(problem: Problem, step: object, tries: int) -> None:
    instance = prepare_instance(problem, max_live_bytes(problem))
    if len(instance):
        peaks = [int((walk_orders(instance, step, n) + instance.size).max()) for n in (1, tries, tries + 3)]  # type: ignore[arg-type]
        assert peaks == sorted(peaks, reverse=True)


@settings(deadline=None)
@given(problems())
def test_what_overlaps_an_item_is_found(problem: Problem) -> None:
    instance = prepare_instance(problem, max_live_bytes(problem))
    total = 0
    for index in range(len(instance)):
        born, dead = instance.birth[index], instance.death[index]
        together = [j for j in range(len(instance)) if instance.birth[j] < dead and born < instance.death[j]]
        assert sorted(instance.neighbors(index).tolist()) == together
        total += len(together)
    assert instance.overlaps == total


def test_larger_problems_than_a_block_of_neighbors() -> None:
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
        found = pack_with(packer, problem)
        for i, j in combinations(range(len(birth)), 2):
            if problem.birth[i] < problem.death[j] and problem.birth[j] < problem.death[i]:
                low, high = (
                    max(found.offset[i], found.offset[j]),
                    min(found.offset[i] + problem.size[i], found.offset[j] + problem.size[j]),
                )
                assert low >= high
