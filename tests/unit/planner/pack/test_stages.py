"""Bounds, reductions, constrained heuristics and stages, with answers worked out by hand."""

from dataclasses import replace

import pytest

from tests.problems import random_problem
from tests.strategies import seeded
from tests.unit.cli.commands.test_pack_processes import cut
from tests.unit.planner.pack.exact.test_exact import counted_work, most_cells_of_a_round
from tmmu.errors import InvalidConfig
from tmmu.ir.problem import PackProblem
from tmmu.judge.packing import packing_faults, require_sound_packing
from tmmu.planner.pack import stages
from tmmu.planner.pack.bounds import gap_bound, live_bound, lower_bound, padded_bound
from tmmu.planner.pack.exact.portfolio import NODE_CELLS
from tmmu.planner.pack.obstacles import best_around_fixed, fit_rounds, prepare_constrained
from tmmu.planner.pack.reduce import canonicalize, common_unit, components, droppable_rounds, select_items
from tmmu.planner.pack.solve import NODE_WORK, pack
from tmmu.planner.pack.stages import (
    HEURISTICS,
    SEARCH,
    SEARCH_ITEMS,
    PackingState,
    build_skylines,
    pack_blocks,
    repair_windows,
    run_stages,
    settle_items,
)

Row = tuple[int, ...]


def problem(rows: list[Row]) -> PackProblem:
    """Rows of (birth, death, size[, alignment[, offset]])."""
    full = [(*row, 1, -1)[:5] if len(row) == 3 else (*row, -1)[:5] for row in rows]
    birth, death, size, alignment, fixed = zip(*full, strict=True) if full else ((),) * 5
    return PackProblem(birth=birth, death=death, size=size, alignment=alignment, fixed=fixed)


def test_live_bound_counts_half_open_spans() -> None:
    assert live_bound(problem([(0, 2, 5), (2, 4, 6), (1, 2, 3)])) == 8
    assert live_bound(problem([])) == 0


def test_padded_bound_pads_all_but_the_topmost_item() -> None:
    rows: list[Row] = [(0, 9, 5, 4), (0, 9, 6, 4), (0, 9, 4, 4), (9, 10, 15, 4)]
    assert live_bound(problem(rows)) == 15
    assert padded_bound(problem(rows)) == 8 + 8 + 4 - 3
    assert pack(problem(rows)).peak == 17
    assert padded_bound(problem([*rows, (20, 21, 1, 4, 2)])) == 0
    assert padded_bound(problem([*rows, (20, 21, 1, 1)])) == 0


def test_padded_bound_ignores_the_slack_of_dead_items() -> None:
    rows: list[Row] = [(0, 5, 1, 8), (1, 9, 7, 8), (6, 9, 8, 8)]
    assert padded_bound(problem(rows)) == 8 + 8 - 1
    assert pack(problem(rows)).peak == 15


def test_gap_bound_counts_unusable_gaps() -> None:
    rows: list[Row] = [(0, 9, 4, 1, 3), (0, 9, 4, 1, 12), (0, 9, 5, 1), (0, 9, 4, 1)]
    assert live_bound(problem(rows)) == 17
    assert gap_bound(problem(rows)) == 17 + 3
    assert lower_bound(problem(rows)) == 20
    assert gap_bound(problem(rows[2:])) == gap_bound(problem(rows[:2])) == 0
    assert lower_bound(problem(rows[:2])) == 16


def test_common_unit_divides_sizes_and_fixed_offsets() -> None:
    assert common_unit(problem([(0, 1, 12), (0, 1, 18)])) == 6
    assert common_unit(problem([(0, 1, 12, 2), (0, 1, 18, 2)])) == 6
    assert common_unit(problem([(0, 1, 12, 4), (0, 1, 18, 1)])) == 2
    assert common_unit(problem([(0, 1, 16, 64), (0, 1, 48, 1)])) == 16
    assert common_unit(problem([(0, 1, 16), (0, 1, 48, 1, 8)])) == 8
    assert common_unit(problem([(0, 1, 16), (0, 1, 48, 1, 0)])) == 16


def test_canonical_form_drops_empty_items_and_ranks_wide_times() -> None:
    far = 2**63
    form = canonicalize(problem([(far, far + 9, 8), (3, 3, 8), (5, 6, 0), (-far, far + 1, 4)]))
    assert form.item == (3, 0)
    assert form.unit == 4
    assert (form.problem.birth, form.problem.death, form.problem.size) == ((0, 1), (2, 3), (1, 2))


def test_components_are_cut_where_nothing_is_live() -> None:
    rows: list[Row] = [(0, 5, 1), (1, 2, 1), (5, 7, 1), (6, 9, 1), (8, 9, 1), (10, 11, 1)]
    assert components(problem(rows)) == (range(2), range(2, 5), range(5, 6))
    assert components(problem([])) == ()


def test_items_that_always_fit_are_dropped() -> None:
    rows: list[Row] = [(0, 9, 10), (0, 9, 10), (0, 1, 2), (5, 6, 4)]
    assert droppable_rounds(problem(rows), 26) == ([0, 1, 3], [[2]])
    assert droppable_rounds(problem(rows), 30) == ([], [[2, 3], [0, 1]])
    assert droppable_rounds(problem(rows), 20) == ([0, 1, 2, 3], [])
    assert droppable_rounds(problem([(0, 9, 10), (0, 9, 2, 8), (0, 9, 2, 1)]), 20) == ([0, 1], [[2]])


def test_dropped_items_go_back_below_the_target() -> None:
    pick = seeded(5)
    for _ in range(200):
        rows = [(b, b + 1 + pick(5), 1 + pick(9), 1 << pick(3)) for b in (pick(12) for _ in range(14))]
        whole = problem(sorted(rows))
        target = live_bound(whole) + pick(40)
        core, rounds = droppable_rounds(whole, target)
        packed = pack(select_items(whole, core), search_nodes=1_000)
        offset = fit_rounds(whole, rounds, dict(zip(core, packed.offset, strict=True)))
        peak = max(low + size for low, size in zip(offset, whole.size, strict=True))
        assert peak <= max(packed.peak, target)
        assert [*packing_faults(whole, offset, peak=peak, bound=peak)] == []


@pytest.mark.parametrize("scale", [1, 2**57])
def test_items_are_placed_around_fixed_ones(scale: int) -> None:
    rows: list[Row] = [(0, 9, 2, 1, 4), (0, 9, 4, 1), (3, 9, 3, 8), (0, 3, 3, 2), (4, 5, 1, 1)]
    scaled = [(row[0], row[1], row[2] * scale, row[3] * scale, row[4] * scale if len(row) == 5 else -1) for row in rows]
    whole = problem(scaled)
    best = best_around_fixed(whole, prepare_constrained(whole, 11 * scale))
    assert best.method == "size"
    offset_of = dict(zip(prepare_constrained(whole, 0).instance.item.tolist(), best.offset.tolist(), strict=True))
    assert [offset_of[item] // scale for item in range(5)] == [4, 0, 8, 6, 6]


def test_items_placed_below_an_unaligned_bound_are_aligned() -> None:
    """The bound is 18, which is no multiple of 4: 6, 6, 6 and 3 live at once, all but the topmost padded to 4."""
    whole = problem([(0, 2, 6, 4), (1, 3, 6, 4), (2, 3, 6, 4), (2, 4, 3, 4), (3, 5, 3, 4)])
    packed = pack(whole, search_nodes=0)
    assert [*packing_faults(whole, packed.offset, peak=packed.peak, bound=packed.bound)] == []


def test_stages_stop_at_the_target() -> None:
    hard = canonicalize(random_aligned_problem(60, 15, 2)).problem
    free = run_stages(PackingState(problem=hard, target=0, search_nodes=2_000), HEURISTICS)
    assert free.peak > free.bound
    assert not free.is_done
    satisfied = run_stages(PackingState(problem=hard, target=free.peak, search_nodes=2_000), HEURISTICS)
    assert satisfied.is_done
    assert run_stages(satisfied, SEARCH) == satisfied
    searched = run_stages(free, SEARCH)
    assert searched.peak < free.peak
    assert searched.nodes_visited > 0


def random_aligned_problem(items: int, live: int, seed: int) -> PackProblem:
    plain = random_problem(items, live, seed)
    return PackProblem(
        size=plain.size, birth=plain.birth, death=plain.death, alignment=(256,) * items, fixed=(-1,) * items
    )


def test_components_below_the_highest_bound_are_not_searched() -> None:
    """The second component needs as much as the heuristics use for the first: no search can lower the peak."""
    hard = random_aligned_problem(60, 15, 2)
    after = max(hard.death)
    form = canonicalize(hard)
    tall = run_stages(PackingState(problem=form.problem, target=0, search_nodes=0), HEURISTICS).peak * form.unit
    both = PackProblem(
        size=(*hard.size, tall),
        birth=(*hard.birth, after),
        death=(*hard.death, after + 1),
        alignment=(*hard.alignment, 256),
        fixed=(*hard.fixed, -1),
    )
    packed = pack(both)
    assert (packed.peak, packed.bound, packed.nodes_visited) == (tall, tall, 0)
    lower = pack(hard, search_nodes=2_000)
    assert 0 < lower.nodes_visited <= 2_000


def test_conflicting_fixed_offsets_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="items 0 and 2"):
        pack(problem([(0, 9, 4, 1, 0), (0, 9, 4, 1), (8, 10, 1, 1, 3)]))
    assert pack(problem([(0, 9, 4, 1, 0), (9, 10, 4, 1, 3)])).peak == 7


def test_empty_items_lie_at_their_fixed_offset() -> None:
    packed = pack(problem([(0, 0, 4, 1, 6), (3, 9, 0, 1), (3, 9, 0, 1, 8), (0, 9, 3, 1)]))
    assert (packed.offset, packed.peak) == ((6, 0, 8, 0), 3)


def test_exact_search_finds_what_no_heuristic_does() -> None:
    whole = problem(cut(60, 1000, 70, seed=1))
    assert pack(whole, search_nodes=0).peak > 1000
    packed = pack(whole, search_nodes=100_000)
    assert (packed.peak, packed.bound, packed.proven, packed.method) == (1000, 1000, True, "exact")
    assert pack(whole, search_nodes=100_000, capacity=1000).peak == 1000


def test_an_item_fixed_at_the_end_of_64_bits_leaves_the_others_below() -> None:
    top = 2**64 - 2
    packed = pack(problem([(0, 2, 1, 1, top), (0, 2, 5, 1, -1)]))
    assert packed.offset == (top, 0)
    assert packed.peak == top + 1


def test_optimum_above_the_bound_is_proven_before_skylines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the skyline search spends all its nodes below what nothing can reach."""
    monkeypatch.setattr("tmmu.planner.pack.skyline.lower_packing", lambda *a, **k: pytest.fail("searched skylines"))
    rows: list[Row] = [(1, 4, 8, 8), (2, 3, 6, 8), (3, 4, 6, 8), (3, 5, 2, 8), (3, 6, 3, 8), (3, 6, 7, 8), (4, 6, 8, 2)]
    packed = pack(problem(rows))
    assert lower_bound(problem(rows)) == 27
    assert (packed.peak, packed.bound) == (34, 34)
    assert packed.nodes_visited < 2_000


@pytest.mark.parametrize(("count", "is_lower"), [(999, False), (1_000, True), (5_000, True), (5_001, False)])
def test_windows_repair_what_is_neither_small_nor_above_the_exact_search(count: int, is_lower: bool) -> None:
    items = problem([(2 * i, 2 * i + 1, 1) for i in range(count - 2)] + [(0, 1, 4), (2, 3, 5)])
    state = PackingState(problem=items, target=0, search_nodes=1_000)
    bounded = replace(run_stages(state, HEURISTICS[:1]), offset=(7,) * count, peak=12)
    assert (repair_windows(bounded).peak < 12) == is_lower


@pytest.mark.parametrize(("count", "is_tried"), [(5_000, True), (5_001, False)])
def test_blocks_are_looked_for_among_as_many_items_as_the_exact_search_takes(
    monkeypatch: pytest.MonkeyPatch, count: int, is_tried: bool
) -> None:
    counts = []
    monkeypatch.setattr(stages, "join_items", lambda items, *, loosely: counts.append(len(items)) or range(count))
    items = problem([(2 * i, 2 * i + 1, 1) for i in range(count)])
    state = run_stages(PackingState(problem=items, target=0, search_nodes=1_000), HEURISTICS[:1])
    pack_blocks(replace(state, offset=(7,) * count, peak=8))
    assert counts == [count] * 2 * is_tried


@pytest.mark.parametrize(("count", "is_searched"), [(100_000, True), (100_001, False)])
def test_skylines_are_searched_of_a_hundred_thousand_items_at_most(
    monkeypatch: pytest.MonkeyPatch, count: int, is_searched: bool
) -> None:
    counts = []

    def lower(items: PackProblem, offset: tuple[int, ...], **_: object) -> tuple[tuple[int, ...], int]:
        counts.append(len(items))
        return offset, 0

    monkeypatch.setattr("tmmu.planner.pack.skyline.lower_packing", lower)
    items = problem([(2 * i, 2 * i + 1, 1) for i in range(count)])
    build_skylines(PackingState(problem=items, target=0, search_nodes=9, offset=(7,) * count, peak=8, bound=1))
    assert counts == [count] * is_searched


def test_many_items_settle_into_the_lowest_gaps() -> None:
    rows: list[Row] = [(0, 2, 4), (1, 3, 2), (2, 4, 5), *((at, at + 1, 1) for at in range(9, SEARCH_ITEMS + 9))]
    state = PackingState(
        problem=problem(rows), target=0, search_nodes=0, work=10**9, offset=(0, 7, 9, *(0,) * SEARCH_ITEMS), peak=14
    )
    settled = settle_items(state)
    assert (settled.offset[:3], settled.peak, settled.method) == ((0, 4, 6), 11, "settle")
    hasty = replace(state, work=0)
    assert settle_items(hasty) is hasty
    few = replace(state, problem=problem(rows[:3]), offset=(0, 7, 9))
    assert settle_items(few) is few


@pytest.mark.long
def test_crowd_of_3000_items_is_packed_within_the_work_that_its_nodes_count_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    birth = [37 * item % 997 for item in range(3_000)]
    crowd = problem([(at, at + (1, 301, 601)[i % 3], (1, 2**40 + 1)[i % 2]) for i, at in enumerate(birth)])
    counted = counted_work(monkeypatch)
    packed = pack(crowd)
    require_sound_packing(crowd, packed.offset, peak=packed.peak, bound=packed.bound)
    assert packed.peak <= packed.bound + 3
    assert packed.nodes_visited <= NODE_WORK // len(crowd)
    cells = sum(cells for _, cells in counted)
    assert sum(visited for visited, _ in counted) * NODE_CELLS * len(crowd) < cells
    assert cells <= NODE_WORK * NODE_CELLS + len(counted) * most_cells_of_a_round(crowd)
