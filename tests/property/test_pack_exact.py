"""The exact search against brute force: its packings are sound, and what it calls impossible is."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tmmu.ir.problem import PackProblem
from tmmu.planner.pack.exact import find, minimize
from tmmu.planner.pack.exact.instance import prepare_instances
from tmmu.planner.pack.exact.orders import CYCLE, splitmix64
from tmmu.planner.pack.exact.portfolio import SearchConfig, make_workspace, run_search

PLENTY = 200_000


def rows(size: st.SearchStrategy[int], most: int, *, fixed: bool, alignments: tuple[int, ...]) -> st.SearchStrategy:
    birth = st.integers(0, 6)
    item = st.tuples(
        size,
        birth,
        st.integers(0, 4),
        st.sampled_from(alignments),
        st.sampled_from([-1, -1, -1, 0, 4, 7, 12] if fixed else [-1]),
    )
    return st.lists(item, min_size=most // 2, max_size=most)


def problem_of(items: list[tuple[int, int, int, int, int]]) -> PackProblem:
    return PackProblem(
        size=tuple(size for size, _, _, _, _ in items),
        birth=tuple(birth for _, birth, _, _, _ in items),
        death=tuple(birth + length for _, birth, length, _, _ in items),
        alignment=tuple(alignment for _, _, _, alignment, _ in items),
        fixed=tuple(fixed for _, _, _, _, fixed in items),
    )


def conflict(p: PackProblem, i: int, j: int) -> bool:
    lives = p.birth[i] < p.death[j] and p.birth[j] < p.death[i] and p.birth[i] < p.death[i] and p.birth[j] < p.death[j]
    return lives and p.size[i] > 0 and p.size[j] > 0


def clash(p: PackProblem, i: int, o: int, j: int, q: int) -> bool:
    return conflict(p, i, j) and o < q + p.size[j] and q < o + p.size[i]


def is_sound(p: PackProblem, offset: tuple[int, ...], capacity: int) -> bool:
    n = len(p)
    takes = [p.size[i] > 0 and p.birth[i] < p.death[i] for i in range(n)]
    places = all(
        offset[i] == p.fixed[i] if p.fixed[i] >= 0 else offset[i] >= 0 and offset[i] % p.alignment[i] == 0
        for i in range(n)
    )
    fits = all(offset[i] + p.size[i] <= capacity for i in range(n) if takes[i])
    return places and fits and not any(clash(p, i, offset[i], j, offset[j]) for i in range(n) for j in range(i))


def least_peak(p: PackProblem) -> int | None:
    """By brute force over items in order of offset, each at 0 or on another; None where fixed offsets overlap."""
    takes = [i for i in range(len(p)) if p.size[i] > 0 and p.birth[i] < p.death[i]]
    offset_of = {i: p.fixed[i] for i in takes if p.fixed[i] >= 0}
    if any(clash(p, i, offset_of[i], j, offset_of[j]) for i in offset_of for j in offset_of if i < j):
        return None
    free = [i for i in takes if p.fixed[i] < 0]
    return min(reachable_peaks(p, free, offset_of, max((o + p.size[i] for i, o in offset_of.items()), default=0), 0))


def reachable_peaks(p: PackProblem, free: list[int], offset_of: dict[int, int], peak: int, floor: int) -> Iterator[int]:
    if not free:
        yield peak
    for i in free:
        step = p.alignment[i]
        ends = {-(-(o + p.size[j]) // step) * step for j, o in offset_of.items() if conflict(p, i, j)}
        for o in sorted({0} | ends):
            if o >= floor and not any(clash(p, i, o, j, q) for j, q in offset_of.items()):
                others = [j for j in free if j != i]
                yield from reachable_peaks(p, others, {**offset_of, i: o}, max(peak, o + p.size[i]), o)


def stack_offsets(p: PackProblem) -> tuple[int, ...]:
    """Fixed offsets as they are, all other items stacked above them."""
    end = max((o + size for o, size in zip(p.fixed, p.size, strict=True) if o >= 0), default=0)
    offset = []
    for i in range(len(p)):
        start = p.fixed[i] if p.fixed[i] >= 0 else -(-end // p.alignment[i]) * p.alignment[i]
        offset.append(start)
        end = max(end, start + p.size[i])
    return tuple(offset)


def check_exact(p: PackProblem) -> None:
    least = least_peak(p)
    if least is None:
        assert find(p, 1_000, search_nodes=PLENTY).status == "impossible"
        return
    verdict = find(p, least, search_nodes=PLENTY)
    assert verdict.status == "placed"
    assert is_sound(p, verdict.offset, least)
    if least:
        assert find(p, least - 1, search_nodes=PLENTY).status == "impossible"
    best = minimize(p, stack_offsets(p), search_nodes=PLENTY)
    assert (best.peak, best.bound, best.proven) == (least, least, True)
    assert is_sound(p, best.offset, least)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(rows(st.integers(0, 6), 6, fixed=False, alignments=(1,)))
def test_plain_items_are_packed_as_low_as_any_placement(items: list) -> None:
    check_exact(problem_of(items))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(rows(st.sampled_from([0, 4, 8, 12, 20]), 6, fixed=False, alignments=(1, 4)))
def test_sizes_with_a_common_unit_are_packed_as_low_as_any_placement(items: list) -> None:
    check_exact(problem_of(items))


@settings(max_examples=500, deadline=None, derandomize=True)
@given(rows(st.integers(0, 9), 6, fixed=True, alignments=(1, 2, 4)))
def test_alignments_and_fixed_offsets_are_packed_as_low_as_any_placement(items: list) -> None:
    check_exact(problem_of(items))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(rows(st.integers(1, 9), 5, fixed=True, alignments=(1, 3, 4, 6)))
def test_alignments_that_do_not_divide_each_other_are_packed_as_low(items: list) -> None:
    check_exact(problem_of(items))


SEVEN = rows(st.integers(1, 9), 7, fixed=True, alignments=(1, 1, 2, 4))


@pytest.mark.slow
@settings(max_examples=500, deadline=None, derandomize=True)
@given(SEVEN)
def test_seven_items_are_packed_as_low_as_any_placement(items: list) -> None:
    check_exact(problem_of(items))


@pytest.mark.long
@settings(max_examples=50_000, deadline=None, derandomize=True)
@given(SEVEN)
def test_many_sets_of_seven_items_are_packed_as_low_as_any_placement(items: list) -> None:
    check_exact(problem_of(items))


def fill_rectangle(seed: int, steps: int, height: int, most: int) -> PackProblem:
    """At most ``most`` items that fill every position to ``height``; often no packing is as low as that."""
    room = [height] * steps
    items: list[tuple[int, int, int, int, int]] = []
    turn = seed * 1_000
    while any(room) and len(items) < most:
        turn += 4
        open_steps = [step for step in range(steps) if room[step]]
        birth = open_steps[splitmix64(turn) % len(open_steps)]
        death, longest = birth + 1, 2 + splitmix64(turn + 1) % 4
        while death < steps and room[death] and death - birth < longest:
            death += 1
        size = 1 + splitmix64(turn + 2) % min(6, *room[birth:death])
        for step in range(birth, death):
            room[step] -= size
        items.append((size, birth, death - birth, 1, -1))
    return problem_of(items)


def fits(p: PackProblem, capacity: int) -> bool:
    """By a search with one rule: the unplaced bytes of a position must fit above its placed ones."""
    steps = max(p.death)
    visited: set[tuple[frozenset[int], tuple[int, ...]]] = set()

    def go(unplaced: frozenset[int], height: tuple[int, ...], floor: int) -> bool:
        if not unplaced:
            return True
        for step in range(steps):
            waiting_units = sum(p.size[i] for i in unplaced if p.birth[i] <= step < p.death[i])
            if waiting_units and max(height[step], 0) + waiting_units > capacity:
                return False
        key = (unplaced, tuple(max(h, floor) for h in height))
        if key in visited:
            return False
        for i in sorted(unplaced):
            o = max(height[p.birth[i] : p.death[i]])
            if o >= floor:
                raised = [o + p.size[i] if p.birth[i] <= step < p.death[i] else h for step, h in enumerate(height)]
                if go(unplaced - {i}, tuple(raised), o):
                    return True
        visited.add(key)
        return False

    return go(frozenset(range(len(p))), (0,) * steps, 0)


def live_bytes(p: PackProblem) -> int:
    return max(sum(p.size[i] for i in range(len(p)) if p.birth[i] <= t < p.death[i]) for t in range(max(p.death)))


def assert_every_order_agrees(p: PackProblem, least: int) -> None:
    fullest = max(prepare_instances(p), key=lambda instance: instance.bound)
    workspace = make_workspace(fullest)
    for turn, (noise, order) in enumerate(CYCLE):
        config = SearchConfig(order=order, noise=noise, seed=turn, max_nodes=PLENTY)
        assert run_search(workspace, least, config, PLENTY).status == "placed"
        if len(prepare_instances(p)) == 1:
            assert run_search(workspace, least - 1, config, PLENTY).status == "impossible"


def block_of(number: int) -> Any:
    """One block by default, two slow ones, and the others long."""
    return pytest.param(number, marks=() if number < 1 else pytest.mark.slow if number < 3 else pytest.mark.long)


@pytest.mark.parametrize("block", [block_of(number) for number in range(10)])
def test_minimum_above_the_bound_is_proven(block: int) -> None:
    gaps = 0
    for seed in range(block * 300, block * 300 + 300):
        p = fill_rectangle(seed, 8 + seed % 5, 6 + seed % 7, 16)
        bound = live_bytes(p)
        if find(p, bound, search_nodes=3 * len(p)).status == "placed":
            continue
        best = minimize(p, stack_offsets(p), search_nodes=PLENTY)
        assert best.proven
        assert is_sound(p, best.offset, best.peak)
        assert best.peak == bound or not fits(p, best.peak - 1)
        assert_every_order_agrees(p, best.peak)
        gaps += best.peak > bound
    assert gaps
