"""Repair of packings by exact search on windows: sound, never higher, the same whatever compiles the search."""

from itertools import pairwise

import pytest

from benchmarks.tilings import HEIGHT, tiling
from tests.problems import random_problem
from tests.unit.planner.pack.test_skyline import peak_of, stacked
from tests.unit.planner.pack.test_stages import problem
from tmmu.cli.output.progress import search_line
from tmmu.ir.problem import PackProblem
from tmmu.judge.packing import require_sound_packing
from tmmu.planner.pack import windows
from tmmu.planner.pack.bounds import live_bound
from tmmu.planner.pack.skyline.progress import SearchProgress
from tmmu.planner.pack.solve import pack
from tmmu.planner.pack.windows import lower_windows


@pytest.mark.parametrize("seed", [3, 4, 9])
def test_windows_lower_what_packers_and_walks_leave(seed: int) -> None:
    tiles = tiling(200, seed)[1]
    start = pack(tiles, search_nodes=0).offset
    offset, work = lower_windows(tiles, start, goal=HEIGHT, work=400_000)
    require_sound_packing(tiles, offset, peak=peak_of(tiles, offset), bound=HEIGHT)
    assert peak_of(tiles, offset) - HEIGHT < (peak_of(tiles, start) - HEIGHT) * 0.97
    assert work < 2_000_000


def test_windows_are_sound_where_sizes_are_aligned() -> None:
    plain = random_problem(80, 8, 5)
    aligned = PackProblem(
        size=tuple(-(-size // 256) * 256 for size in plain.size),
        birth=plain.birth,
        death=plain.death,
        alignment=(256,) * 80,
        fixed=(-1,) * 80,
    )
    offset, _ = lower_windows(aligned, stacked(aligned), goal=0, work=100_000)
    require_sound_packing(aligned, offset, peak=peak_of(aligned, offset), bound=live_bound(aligned))
    assert peak_of(aligned, offset) < peak_of(aligned, stacked(aligned))


def test_items_settle_into_the_lowest_gaps_before_any_window() -> None:
    items = problem([(0, 2, 4), (1, 3, 2), (2, 4, 5)])
    assert lower_windows(items, (0, 7, 9), goal=0, work=0) == ((0, 4, 6), 3 * 60)


def test_windows_end_at_their_goal_and_report_peaks_that_never_rise() -> None:
    tiles = tiling(200, 3)[1]
    said: list[SearchProgress] = []
    goal = HEIGHT * 5 // 4
    offset, work = lower_windows(tiles, stacked(tiles), goal=goal, work=4_000_000, report=said.append)
    assert peak_of(tiles, offset) <= goal
    assert work < 4_000_000
    assert all(
        later.peak <= earlier.peak and at.width == 0
        for (earlier, later), at in zip(pairwise(said), said[1:], strict=True)
    )


def test_window_holds_the_item_and_its_nearest_neighbours() -> None:
    items = problem([(0, 9, 4), (0, 9, 4), (0, 9, 4), (0, 9, 4)])
    placed = windows._placed_items(items, (0, 4, 8, 12))
    assert windows.nearest_items(placed, 3, 0, 2, 4).tolist() == [3, 2]
    assert windows.nearest_items(placed, 3, 0, 3, 4).tolist() == [3, 2, 1]


def test_search_line_says_beams_or_windows() -> None:
    line = search_line(SearchProgress(width=16, peak=900, permille=123))
    assert line == "beams of 16: peak 900, 12.3 % of the search"
    assert search_line(SearchProgress(width=0, peak=900, permille=5)).startswith("windows: peak 900, 0.5 %")
