"""What holds for every packing problem, through the public ``pack``: sound, minimal, never wrongly proven."""

from itertools import permutations
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tmmu.errors import InvalidConfig
from tmmu.ir.problem import PackProblem
from tmmu.judge.packing import nonempty_items, overlapping_pairs, packing_faults
from tmmu.planner.pack.reduce import take
from tmmu.planner.pack.solve import Packed, pack

SCALES: Final = (1, 3, 256, 2**40)
TIMES: Final = (1, 2**62)


@st.composite
def problems(draw: st.DrawFn, most: int = 7) -> PackProblem:
    """Up to ``most`` items; some of no bytes or an empty span, some aligned, some given, in all mixtures."""
    rows = draw(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4), st.integers(0, 9)), max_size=most))
    scale, time = draw(st.sampled_from(SCALES)), draw(st.sampled_from(TIMES))
    steps = draw(st.sampled_from(((1,), (4,), (1, 2, 8))))
    places = draw(st.sampled_from(((-1,), (-1, -1, 0, 1, 2))))
    alignment = tuple(draw(st.sampled_from(steps)) for _ in rows)
    return PackProblem(
        size=tuple(size * scale for _, _, size in rows),
        birth=tuple(birth * time for birth, _, _ in rows),
        death=tuple((birth + length) * time for birth, length, _ in rows),
        alignment=alignment,
        fixed=tuple(max(draw(st.sampled_from(places)) * 8 * scale, -1) for _ in rows),
    )


def contradicts_itself(problem: PackProblem) -> bool:
    given_ones = take(problem, [i for i, offset in enumerate(problem.fixed) if offset >= 0])
    return any(overlapping_pairs(given_ones, given_ones.fixed))


def least_peak(problem: PackProblem) -> int:
    """By brute force: every order, each item at its lowest place. Some order of a minimal packing yields it."""
    items = nonempty_items(problem)
    given_ones = {i: problem.fixed[i] for i in items if problem.fixed[i] >= 0}
    orders = permutations([i for i in items if i not in given_ones])
    return min(_peak_in_order(problem, dict(given_ones), order) for order in orders)


def _peak_in_order(problem: PackProblem, offset: dict[int, int], order: tuple[int, ...]) -> int:
    for item in order:
        step, low = problem.alignment[item], 0
        near = sorted(
            (offset[j], offset[j] + problem.size[j])
            for j in offset
            if problem.birth[j] < problem.death[item] and problem.birth[item] < problem.death[j]
        )
        for start, end in near:
            if low + problem.size[item] <= start:
                break
            low = max(low, -(-end // step) * step)
        offset[item] = low
    return max((offset[item] + problem.size[item] for item in offset), default=0)


def demand_sound(problem: PackProblem, found: Packed) -> None:
    assert [*packing_faults(problem, found.offset, peak=found.peak, bound=found.bound)] == []
    assert found.live <= found.bound
    assert all(type(offset) is int for offset in found.offset)


@settings(deadline=None, max_examples=300)
@given(problems())
def test_equal_to_brute_force(problem: PackProblem) -> None:
    if contradicts_itself(problem):
        with pytest.raises(InvalidConfig):
            pack(problem)
        return
    found = pack(problem)
    demand_sound(problem, found)
    assert found.peak == least_peak(problem)
    assert found.proven


@settings(deadline=None, max_examples=200)
@given(problems(), st.integers(-2, 2))
def test_a_capacity_is_met_or_shown_to_be_too_small(problem: PackProblem, more: int) -> None:
    if contradicts_itself(problem):
        return
    least = least_peak(problem)
    capacity = max(1, least + more)
    found = pack(problem, capacity=capacity)
    demand_sound(problem, found)
    assert (found.peak <= capacity) == (least <= capacity)
    assert (found.bound > capacity) == (least > capacity)


@settings(deadline=None, max_examples=200)
@given(problems(most=30), st.randoms(use_true_random=False), st.sampled_from((0, 50, 1000)))
def test_the_order_of_items_changes_nothing(problem: PackProblem, random: object, nodes: int) -> None:
    """But that items alike in everything may swap."""
    if contradicts_itself(problem):
        return
    order = list(range(len(problem)))
    random.shuffle(order)  # type: ignore[attr-defined]
    moved = take(problem, order)
    one, other = pack(problem, search_nodes=nodes), pack(moved, search_nodes=nodes)
    demand_sound(problem, one)
    assert placed(problem, one) == placed(moved, other)
    assert (one.peak, one.bound, one.method, one.nodes_visited) == (
        other.peak,
        other.bound,
        other.method,
        other.nodes_visited,
    )


def placed(problem: PackProblem, found: Packed) -> list[tuple[int, ...]]:
    columns = (problem.birth, problem.death, problem.size, problem.alignment, problem.fixed, found.offset)
    return sorted(zip(*columns, strict=True))


@settings(deadline=None, max_examples=100)
@given(problems(most=30))
def test_a_search_never_makes_it_worse_and_costs_no_more_than_allowed(problem: PackProblem) -> None:
    if contradicts_itself(problem):
        return
    less, more = pack(problem, search_nodes=0), pack(problem, search_nodes=500)
    assert less.nodes_visited == 0
    assert more.nodes_visited <= 500
    assert more.peak <= less.peak
    assert more.bound >= less.bound
