"""Sections, bounds, twins, peers, orders and restarts of the exact search, with answers worked out by hand."""

import os
import subprocess
import sys
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.planner.pack.exact.test_exact import problem
from tmmu.planner.pack.exact import jit
from tmmu.planner.pack.exact.instance import offset_unit, prepare_instances, sections_of
from tmmu.planner.pack.exact.memory import neighbors, peers, twins
from tmmu.planner.pack.exact.orders import CYCLE, by_width, features_of, ranks
from tmmu.planner.pack.exact.portfolio import luby, search_configs


def test_sections_are_the_largest_sets_of_items_live_at_once() -> None:
    lo, hi, count = sections_of([0, 1, 3, 3, 5], [4, 2, 6, 5, 7])
    assert count == 3  # {0, 1}, {0, 2, 3}, {2, 4}
    assert lo == (0, 0, 1, 1, 2)
    assert hi == (2, 1, 3, 2, 3)


def test_items_that_only_touch_share_no_section() -> None:
    assert sections_of([0, 2], [2, 4]) == ((0, 1), (1, 2), 2)


def test_parts_of_the_timeline_are_instances_in_the_order_of_time() -> None:
    parts = prepare_instances(problem([(5, 8, 9), (1, 0, 3), (2, 2, 4), (7, 4, 6), (0, 0, 9)]))
    assert [part.row for part in parts] == [(1, 2), (3,), (0,)]


@pytest.mark.parametrize(
    ("sizes", "alignments", "fixed", "unit"),
    [
        ([12, 18], [1, 1], [-1, -1], 6),
        ([12, 18], [1, 1], [4, -1], 2),
        ([12, 18], [4, 1], [-1, -1], 2),
        ([12, 24], [4, 3], [-1, -1], 12),
        ([12, 24], [24, 1], [-1, -1], 12),
        ([8, 24], [16, 3], [-1, 0], 1),
    ],
)
def test_common_unit_divides_every_relevant_offset(
    sizes: list[int], alignments: list[int], fixed: list[int], unit: int
) -> None:
    assert offset_unit(sizes, alignments, fixed) == unit


def test_bound_leaves_out_the_padding_of_the_topmost_item() -> None:
    (part,) = prepare_instances(problem([(5, 0, 2), (7, 1, 3), (2, 2, 3)], alignment=[4, 4, 4]))
    assert (part.unit, part.units) == (4, (2, 2, 1))
    assert part.loads == [4, 3]
    assert part.bound == 16 - 3


def test_bound_reaches_every_fixed_end() -> None:
    (part,) = prepare_instances(problem([(5, 0, 2)], fixed=[30]))
    assert part.bound == 35


def test_neighbors_twins_and_peers() -> None:
    (part,) = prepare_instances(problem([(5, 0, 4), (3, 0, 2), (3, 0, 2), (4, 0, 2), (2, 2, 4)]))
    assert part.bytes == (5, 4, 3, 3, 2)
    assert [items.tolist() for items in neighbors(part)] == [[1, 2, 3, 4], [0, 2, 3], [0, 1, 3], [0, 1, 2], [0]]
    assert twins(part, [0, 1, 2, 3, 4]) == [-1, -1, -1, 2, -1]
    assert twins(part, [0, 1, 3, 2, 4]) == [-1, -1, 3, -1, -1]
    ring = peers(part)
    assert sorted(ring[item] for item in (1, 2, 3)) == [1, 2, 3]
    assert all(ring[item] != item for item in (1, 2, 3))
    assert (ring[0], ring[4]) == (0, 4)


def test_fixed_neighbors_come_first_and_by_offset() -> None:
    items = [(5, 0, 4), (3, 1, 2), (4, 1, 2), (2, 1, 2), (2, 3, 4)]
    (part,) = prepare_instances(problem(items, fixed=[-1, 5, 8, 0, -1]))
    assert (part.bytes, part.fixed) == ((5, 4, 3, 2, 2), (-1, 8, 5, 0, -1))
    assert [items.tolist() for items in neighbors(part)] == [[3, 2, 1, 4], [3, 2, 0], [3, 1, 0], [2, 1, 0], [0]]


def test_fixed_items_have_neither_twins_nor_peers() -> None:
    (part,) = prepare_instances(problem([(3, 0, 2), (3, 0, 2), (3, 0, 2)], fixed=[-1, 0, 3]))
    assert twins(part, [0, 1, 2]) == [-1, -1, -1]
    assert peers(part) == [0, 1, 2]


def test_node_limits_follow_lubys_sequence() -> None:
    assert [luby(turn) for turn in range(1, 16)] == [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]
    assert [config.max_nodes for config in islice(search_configs(50), 3)] == [200, 200, 400]


def test_search_configs_have_distinct_seeds() -> None:
    first = list(islice(search_configs(50), 3 * len(CYCLE)))
    assert len({config.seed for config in first}) == len(first)


def test_ranks_are_exact_without_noise_and_repeatable_with_it() -> None:
    (part,) = prepare_instances(problem([(1, 0, 3), (1, 0, 9), (1, 2, 5), (1, 4, 7)]))
    shape = features_of(part)
    assert shape.width == (2, 1, 2, 1)
    assert ranks(shape, by_width, noise=0, seed=1) == [0, 2, 1, 3]
    disturbed = [ranks(shape, by_width, noise=200, seed=seed) for seed in range(20)]
    assert disturbed == [ranks(shape, by_width, noise=200, seed=seed) for seed in range(20)]
    assert len({tuple(rank) for rank in disturbed}) > 1
    assert all(sorted(rank) == [0, 1, 2, 3] for rank in disturbed)


def test_jit_compiles_uncached_where_no_folder_is_writable(monkeypatch: pytest.MonkeyPatch) -> None:
    def njit(function: object = None, *, cache: bool = False) -> object:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return ("compiled", function)

    monkeypatch.setattr(jit, "_NUMBA", SimpleNamespace(njit=njit))
    assert jit.jit(len) == ("compiled", len)


def test_import_of_the_package_does_not_import_numba() -> None:
    code = "import sys, tmmu.planner.pack.exact; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ}, cwd=Path(__file__).parents[3])
