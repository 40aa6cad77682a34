"""``pack`` on random problems: sound, minimal, and proven only when minimal."""

from dataclasses import replace
from itertools import permutations
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tmmu.errors import InvalidConfig
from tmmu.ir.problem import PackProblem
from tmmu.judge.packing import nonempty_items, overlapping_pairs, packing_faults
from tmmu.planner.pack.reduce import select_items
from tmmu.planner.pack.solve import PackingResult, pack

SCALES: Final = (1, 3, 256, 2**40)
TIMES: Final = (1, 2**62)


@st.composite
def problems(draw: st.DrawFn, most: int = 7) -> PackProblem:
    """Up to ``most`` items, empty, aligned and fixed ones among them."""
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


def fixed_offsets_conflict(problem: PackProblem) -> bool:
    fixed_items = select_items(problem, [i for i, offset in enumerate(problem.fixed) if offset >= 0])
    return any(overlapping_pairs(fixed_items, fixed_items.fixed))


def least_peak(problem: PackProblem) -> int:
    """By brute force over all orders, each item at its lowest offset: some order yields a minimal packing."""
    items = nonempty_items(problem)
    offset_of = {i: problem.fixed[i] for i in items if problem.fixed[i] >= 0}
    orders = permutations([i for i in items if i not in offset_of])
    return min(_peak_in_order(problem, dict(offset_of), order) for order in orders)


def _peak_in_order(problem: PackProblem, offset: dict[int, int], order: tuple[int, ...]) -> int:
    for item in order:
        step, low = problem.alignment[item], 0
        spans = sorted(
            (offset[j], offset[j] + problem.size[j])
            for j in offset
            if problem.birth[j] < problem.death[item] and problem.birth[item] < problem.death[j]
        )
        for start, end in spans:
            if low + problem.size[item] <= start:
                break
            low = max(low, -(-end // step) * step)
        offset[item] = low
    return max((offset[item] + problem.size[item] for item in offset), default=0)


def require_sound(problem: PackProblem, packed: PackingResult) -> None:
    assert [*packing_faults(problem, packed.offset, peak=packed.peak, bound=packed.bound)] == []
    assert packed.live <= packed.bound
    assert all(type(offset) is int for offset in packed.offset)


@settings(deadline=None, max_examples=300)
@given(problems())
def test_pack_equals_brute_force(problem: PackProblem) -> None:
    if fixed_offsets_conflict(problem):
        with pytest.raises(InvalidConfig):
            pack(problem)
        return
    packed = pack(problem)
    require_sound(problem, packed)
    assert packed.peak == least_peak(problem)
    assert packed.proven


@settings(deadline=None, max_examples=200)
@given(problems(), st.integers(-2, 2))
def test_pack_meets_the_capacity_or_proves_it_too_small(problem: PackProblem, more: int) -> None:
    if fixed_offsets_conflict(problem):
        return
    least = least_peak(problem)
    capacity = max(1, least + more)
    packed = pack(problem, capacity=capacity)
    require_sound(problem, packed)
    assert (packed.peak <= capacity) == (least <= capacity)
    assert (packed.bound > capacity) == (least > capacity)


@settings(deadline=None, max_examples=200)
@given(problems(most=30), st.randoms(use_true_random=False), st.sampled_from((0, 50, 1000)))
def test_pack_does_not_depend_on_item_order(problem: PackProblem, random: object, nodes: int) -> None:
    """Except that equal items may swap."""
    if fixed_offsets_conflict(problem):
        return
    order = list(range(len(problem)))
    random.shuffle(order)  # type: ignore[attr-defined]
    reordered = select_items(problem, order)
    original, shuffled = pack(problem, search_nodes=nodes), pack(reordered, search_nodes=nodes)
    require_sound(problem, original)
    assert placed_rows(problem, original) == placed_rows(reordered, shuffled)
    assert replace(original, offset=()) == replace(shuffled, offset=())


def placed_rows(problem: PackProblem, packed: PackingResult) -> list[tuple[int, ...]]:
    columns = (problem.birth, problem.death, problem.size, problem.alignment, problem.fixed, packed.offset)
    return sorted(zip(*columns, strict=True))


@settings(deadline=None, max_examples=100)
@given(problems(most=30))
def test_search_is_never_worse_and_within_its_budget(problem: PackProblem) -> None:
    if fixed_offsets_conflict(problem):
        return
    less, more = pack(problem, search_nodes=0), pack(problem, search_nodes=500)
    assert less.nodes_visited == 0
    assert more.nodes_visited <= 500
    assert more.peak <= less.peak
    assert more.bound >= less.bound
