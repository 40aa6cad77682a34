"""``exact.find`` and ``exact.minimize``: answers by hand, limits, and determinism across processes."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from tmmu.ir.problem import PackProblem
from tmmu.planner.pack.exact import find, kernel, minimize, portfolio
from tmmu.planner.pack.exact.instance import MAX_ITEMS, prepare_instances
from tmmu.planner.pack.exact.memory import make_state
from tmmu.planner.pack.exact.orders import splitmix64
from tmmu.planner.pack.exact.state import SearchStack

Item = tuple[int, int, int]


def problem(
    items: Sequence[Item], alignment: Sequence[int] | None = None, fixed: Sequence[int] | None = None
) -> PackProblem:
    return PackProblem(
        size=tuple(size for size, _, _ in items),
        birth=tuple(birth for _, birth, _ in items),
        death=tuple(death for _, _, death in items),
        alignment=tuple(alignment or [1] * len(items)),
        fixed=tuple(fixed or [-1] * len(items)),
    )


def cut_rectangle(seed: int, cuts: int, width: int, height: int) -> list[Item]:
    """A full rectangle of bytes and positions, cut into items: they can be packed to exactly ``height``."""
    blocks = [(0, width, height)]
    for turn in range(cuts):
        start, end, size = blocks.pop(splitmix64(seed + 3 * turn) % len(blocks))
        if splitmix64(seed + 3 * turn + 1) % 2 and end - start > 1:
            middle = start + 1 + splitmix64(seed + 3 * turn + 2) % (end - start - 1)
            blocks += [(start, middle, size), (middle, end, size)]
        elif size > 1:
            part = 1 + splitmix64(seed + 3 * turn + 2) % (size - 1)
            blocks += [(start, end, part), (start, end, size - part)]
        else:
            blocks.append((start, end, size))
    return sorted((size, start, end) for start, end, size in blocks)


def crowded(count: int) -> PackProblem:
    """Items of one unit beside huge ones, a third or more live at once: a node's bounds rise by a unit a round."""
    birth = [37 * item % (count // 3) for item in range(count)]
    life = (1, count // 10 + 1, count // 5 + 1)
    return problem([((1, 2**40 + 1)[item % 2], at, at + life[item % 3]) for item, at in enumerate(birth)])


def stack_offsets(p: PackProblem) -> tuple[int, ...]:
    return tuple(sum(p.size[:row]) for row in range(len(p)))


def assert_sound(p: PackProblem, offset: tuple[int, ...], capacity: int) -> None:
    for i in range(len(p)):
        assert 0 <= offset[i] <= capacity - p.size[i]
        assert offset[i] % p.alignment[i] == 0
        for j in range(i):
            together = p.birth[i] < p.death[j] and p.birth[j] < p.death[i]
            apart = offset[i] + p.size[i] <= offset[j] or offset[j] + p.size[j] <= offset[i]
            assert apart or not together


def test_problem_without_items_fits_in_zero_bytes() -> None:
    verdict = find(problem([]), 0, search_nodes=1)
    assert (verdict.status, verdict.offset, verdict.nodes_visited) == ("placed", (), 0)


def test_empty_items_lie_at_zero_or_at_their_fixed_offset() -> None:
    p = problem([(0, 0, 9), (7, 4, 4), (0, 1, 2)], fixed=[-1, -1, 5])
    assert find(p, 0, search_nodes=1).offset == (0, 0, 5)
    assert minimize(p, (3, 3, 5), search_nodes=1).offset == (0, 0, 5)


def test_items_live_at_once_lie_on_each_other() -> None:
    verdict = find(problem([(3, 0, 2), (4, 1, 3)]), 7, search_nodes=10)
    assert verdict.status == "placed"
    assert sorted(verdict.offset) in ([0, 3], [0, 4])


def test_capacity_below_the_live_bytes_needs_no_search() -> None:
    verdict = find(problem([(3, 0, 2), (4, 1, 3)]), 6, search_nodes=0)
    assert (verdict.status, verdict.offset, verdict.nodes_visited) == ("impossible", (), 0)


def test_fixed_offset_splits_the_bytes_below_the_capacity() -> None:
    p = problem([(2, 0, 1), (3, 0, 1), (3, 0, 1)], fixed=[4, -1, -1])
    assert find(p, 8, search_nodes=100).status == "impossible"
    verdict = find(p, 9, search_nodes=100)
    assert verdict.offset in ((4, 0, 6), (4, 6, 0))


def test_alignment_leaves_a_gap_that_a_smaller_item_fills() -> None:
    p = problem([(3, 0, 1), (4, 0, 1), (1, 0, 1)], alignment=[1, 4, 1])
    assert find(p, 7, search_nodes=100).status == "impossible"
    verdict = find(p, 8, search_nodes=100)
    assert verdict.status == "placed"
    assert_sound(p, verdict.offset, 8)


def test_fixed_offsets_that_overlap_are_impossible_at_any_capacity() -> None:
    p = problem([(3, 0, 2), (3, 1, 3)], fixed=[0, 2])
    assert find(p, 1_000_000, search_nodes=100).status == "impossible"


def test_fixed_end_above_the_capacity_is_impossible() -> None:
    assert find(problem([(3, 0, 2)], fixed=[5]), 7, search_nodes=100).status == "impossible"


@pytest.mark.parametrize("seed", range(12))
def test_cut_rectangle_is_packed_to_its_height(seed: int) -> None:
    p = problem(cut_rectangle(seed * 1000, 60, 24, 40))
    verdict = find(p, 40, search_nodes=200_000)
    assert verdict.status == "placed"
    assert_sound(p, verdict.offset, 40)


def test_components_in_time_are_packed_separately() -> None:
    late = [(size, birth + 100, death + 100) for size, birth, death in cut_rectangle(3, 20, 10, 30)]
    p = problem(cut_rectangle(2, 20, 10, 20) + late)
    best = minimize(p, stack_offsets(p), search_nodes=50_000)
    assert (best.peak, best.bound, best.proven) == (30, 30, True)
    assert_sound(p, best.offset, 30)


def test_minimize_without_nodes_changes_nothing() -> None:
    p = problem(cut_rectangle(5, 30, 12, 20))
    best = minimize(p, stack_offsets(p), search_nodes=0)
    assert (best.offset, best.peak, best.bound, best.proven) == (stack_offsets(p), sum(p.size), 20, False)


@pytest.mark.parametrize("nodes", [0, 1, 7, 100, 3_000])
def test_search_nodes_are_never_exceeded(nodes: int) -> None:
    p = problem(cut_rectangle(7, 150, 60, 200))
    assert find(p, 200, search_nodes=nodes).nodes_visited <= nodes
    best = minimize(p, stack_offsets(p), search_nodes=nodes)
    assert best.nodes_visited <= nodes
    assert best.peak <= sum(p.size)
    assert_sound(p, best.offset, best.peak)


def counted_work(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(nodes visited, cells looked at) of every search from now on."""
    counted: list[tuple[int, int]] = []

    def counting(items: object, state: object, sections: object, stack: SearchStack, max_nodes: int) -> tuple[int, int]:
        code, nodes = kernel.search(items, state, sections, stack, max_nodes)  # type: ignore[arg-type]
        counted.append((int(nodes), int(stack.cursor[kernel.WORK])))
        return code, nodes

    monkeypatch.setattr(portfolio, "search", counting)
    return counted


def most_cells_of_a_round(p: PackProblem) -> int:
    """More than what a search can look at between two looks at its limit: all neighbours of all items and sections."""
    return 3 * len(p) ** 2


@pytest.mark.parametrize("nodes", [20, 100])
def test_dear_nodes_count_as_several(nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    p = crowded(900)
    counted = counted_work(monkeypatch)
    best = minimize(p, stack_offsets(p), search_nodes=nodes)
    assert_sound(p, best.offset, best.peak)
    visited, cells = (sum(column) for column in zip(*counted, strict=True))
    assert visited < best.nodes_visited <= nodes
    assert cells <= nodes * portfolio.NODE_CELLS * len(p) + len(counted) * most_cells_of_a_round(p)


def test_cheap_nodes_count_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    p = problem(cut_rectangle(7, 150, 60, 200))
    counted = counted_work(monkeypatch)
    assert find(p, 200, search_nodes=3_000).nodes_visited == sum(visited for visited, _ in counted)


def test_fixed_neighbors_are_passed_once() -> None:
    count = 200
    order = sorted(range(count), key=splitmix64)
    p = problem([(2, 0, 1)] * count + [(3, 0, 1)], fixed=[4 * item for item in order] + [-1])
    (part,) = prepare_instances(p)
    space = portfolio.make_workspace(part)
    state, free = make_state(part), part.fixed.index(-1)
    assert kernel.clear_of_fixed(space.items, state, space.stack, free, 0) == 4 * count - 2
    assert (state.support[free], space.stack.cursor[kernel.WORK]) == (4 * count - 2, count)
    assert kernel.clear_of_fixed(space.items, state, space.stack, free, 4 * count) == 4 * count


def test_search_with_more_nodes_is_never_worse() -> None:
    p = problem(cut_rectangle(11, 120, 40, 300))
    peaks = [minimize(p, stack_offsets(p), search_nodes=nodes).peak for nodes in (0, 200, 2_000, 20_000)]
    assert peaks == sorted(peaks, reverse=True)


def test_problem_of_too_many_items_stays_unknown() -> None:
    p = problem([(1, 0, 1)] * (MAX_ITEMS + 1))
    assert find(p, MAX_ITEMS + 1, search_nodes=10**6).status == "unknown"
    assert not minimize(p, tuple(2 * row for row in range(len(p))), search_nodes=10**6).proven


def test_numbers_beyond_a_word_stay_unknown_unless_a_common_unit_makes_them_small() -> None:
    odd = problem([(2**63 + 1, 0, 2), (2**62 + 3, 1, 3)])
    assert find(odd, 2**65, search_nodes=100).status == "unknown"
    even = problem([(2**63, 0, 2), (2**62, 1, 3)])
    assert find(even, 2**63 + 2**62, search_nodes=100).status == "placed"


def test_row_order_does_not_change_the_answer() -> None:
    items = cut_rectangle(13, 60, 24, 40)
    expected = sorted(zip(items, find(problem(items), 40, search_nodes=100_000).offset, strict=True))
    for order in (items[::-1], sorted(items, key=lambda item: splitmix64(sum(item)))):
        verdict = find(problem(order), 40, search_nodes=100_000)
        assert sorted(zip(order, verdict.offset, strict=True)) == expected


SCRIPT = """
import json, sys
if sys.argv[1] == "missing":
    sys.modules["numba"] = None
from tests.unit.planner.pack.exact.test_exact import crowded, cut_rectangle, problem, stack_offsets
from tmmu.planner.pack.exact import find, minimize
p = problem(cut_rectangle(17, 25, 12, 30), fixed=[-1] * 3 + [0] + [-1] * 22)
q = problem(cut_rectangle(19, 30, 12, 30))
one, two = find(q, 30, search_nodes=3000), minimize(q, stack_offsets(q), search_nodes=3000)
three = find(p, 36, search_nodes=500)
crowd = crowded(900)
dear = minimize(crowd, stack_offsets(crowd), search_nodes=12)
first = [one.status, one.offset, one.nodes_visited]
print(json.dumps([*first, two.offset, two.bound, two.nodes_visited, three.status, three.nodes_visited,
                  dear.offset, dear.nodes_visited]))
"""


def answers_of_process(numba: str, **environment: str) -> list[object]:
    env = {**os.environ, **environment}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, numba], env=env, capture_output=True, text=True, check=True, timeout=300
    )
    result: list[object] = json.loads(done.stdout)
    return result


def test_answers_do_not_depend_on_numba_hash_seed_or_threads() -> None:
    expected = answers_of_process("present", PYTHONHASHSEED="1")
    assert expected[0] == "placed"
    assert answers_of_process("present", PYTHONHASHSEED="2", NUMBA_NUM_THREADS="1", OMP_NUM_THREADS="1") == expected
    assert answers_of_process("present", NUMBA_DISABLE_JIT="1") == expected
    assert answers_of_process("missing") == expected


def test_component_is_not_packed_below_what_another_needs() -> None:
    tall = [(9, 0, 1), (9, 0, 1)]
    loose = [(size, birth + 10, death + 10) for size, birth, death in cut_rectangle(3, 12, 8, 12)]
    p = problem(tall + loose)
    spread = (0, 9, *(sum(size for size, _, _ in loose[:row]) for row in range(len(loose))))
    best = minimize(p, spread, search_nodes=10_000)
    assert (best.peak, best.proven) == (18, True)
    assert max(o + p.size[row] for row, o in enumerate(best.offset)) == 18
