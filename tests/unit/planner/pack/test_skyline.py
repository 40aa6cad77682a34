"""Skyline search: tilings whose optimum is known, soundness, and the same offsets with and without numba."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest

from benchmarks.tilings import HEIGHT, tiling
from tests.problems import random_problem
from tmmu.ir.problem import PackProblem
from tmmu.judge.packing import require_sound_packing
from tmmu.planner.pack import solve
from tmmu.planner.pack.bounds import live_bound
from tmmu.planner.pack.exact.instance import prepare_instances
from tmmu.planner.pack.skyline import lower_packing, restarts
from tmmu.planner.pack.skyline.progress import SearchProgress
from tmmu.planner.pack.solve import pack
from tmmu.planner.pack.stages import PackingState


def stacked(problem: PackProblem) -> tuple[int, ...]:
    """Every item above all before it, each at a multiple of its alignment."""
    offsets, top = [], 0
    for size, alignment in zip(problem.size, problem.alignment, strict=True):
        top = -(-top // alignment) * alignment
        offsets.append(top)
        top += size
    return tuple(offsets)


def peak_of(problem: PackProblem, offset: tuple[int, ...]) -> int:
    return max(low + size for low, size in zip(offset, problem.size, strict=True))


def test_beams_begin_above_a_start_below_which_all_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    (part, *_) = prepare_instances(tiling(80, 0)[1])
    peak, caps = part.bound + part.bound // 4, []

    def fail(workspace: object, config: object, cap: int, work: int) -> tuple[tuple[int, ...], int]:
        caps.append(cap)
        return (), 1

    monkeypatch.setattr(restarts, "run_beam", fail)
    found = restarts.lower_peak(part, peak, part.bound, 40)
    assert (found.offset, found.peak, found.work) == ((), peak, 40)
    assert caps[0] < peak < max(caps)


@pytest.mark.parametrize("seed", range(6))
def test_tiling_of_eighty_items_ends_within_six_percent_of_its_height(seed: int) -> None:
    problem = tiling(80, seed)[1]
    offset, work = lower_packing(problem, stacked(problem), goal=0, work=20_000_000)
    require_sound_packing(problem, offset, peak=peak_of(problem, offset), bound=HEIGHT)
    assert peak_of(problem, offset) <= HEIGHT * 1.06
    assert work < 22_000_000


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.long if seed == 3 else pytest.mark.slow) for seed in range(6)]
)
def test_tiling_of_three_hundred_items_ends_within_eight_percent_of_its_height(seed: int) -> None:
    problem = tiling(300, seed)[1]
    packed = pack(problem)
    require_sound_packing(problem, packed.offset, peak=packed.peak, bound=packed.bound)
    assert packed.peak <= HEIGHT * 1.08


def beside(first: PackProblem, second: PackProblem) -> PackProblem:
    """One after another in time: two components."""
    start = max(first.death)
    return PackProblem(
        size=first.size + second.size,
        birth=first.birth + tuple(start + time for time in second.birth),
        death=first.death + tuple(start + time for time in second.death),
        alignment=first.alignment + second.alignment,
        fixed=first.fixed + second.fixed,
    )


def test_components_that_share_the_nodes_end_near_their_optimum() -> None:
    problem = beside(tiling(200, 0)[1], tiling(200, 3)[1])
    packed = pack(problem, search_nodes=12_000)
    require_sound_packing(problem, packed.offset, peak=packed.peak, bound=packed.bound)
    assert packed.peak <= HEIGHT * 1.12
    assert packed.nodes_visited <= 12_000


def test_highest_component_comes_next_and_gets_twice_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = []

    def lower_by_one(part: PackingState, floor: int, nodes: int, *, is_first: bool) -> PackingState:
        spent.append((part.problem.birth[0], nodes, is_first))
        return replace(part, peak=part.peak - 1, nodes_visited=nodes)

    monkeypatch.setattr(solve, "_search_component", lower_by_one)
    problem = beside(tiling(80, 0)[1], tiling(80, 0)[1])
    assert pack(problem, search_nodes=12_000).nodes_visited == 12_000
    (first, *_), (second, *_), *_ = spent
    assert spent == [(first, 3_000, True), (second, 3_000, True), (first, 6_000, False)]


@pytest.mark.parametrize("alignment", [1, 1 << 10, 1 << 12])
def test_skyline_is_sound_where_alignments_leave_gaps(alignment: int) -> None:
    plain = random_problem(60, 8, alignment)
    steps = tuple(alignment if item % 3 else 256 for item in range(60))
    problem = PackProblem(size=plain.size, birth=plain.birth, death=plain.death, alignment=steps, fixed=(-1,) * 60)
    start = stacked(problem)
    offset, _ = lower_packing(problem, start, goal=0, work=2_000_000)
    require_sound_packing(problem, offset, peak=peak_of(problem, offset), bound=live_bound(problem))
    assert peak_of(problem, offset) < peak_of(problem, start)


def test_skyline_without_work_keeps_the_offsets_it_is_given() -> None:
    problem = tiling(80, 0)[1]
    assert lower_packing(problem, stacked(problem), goal=0, work=0) == (stacked(problem), 0)


def test_skyline_ends_at_its_goal_and_reports_peaks_that_never_rise() -> None:
    problem = tiling(80, 1)[1]
    said: list[SearchProgress] = []
    goal = HEIGHT * 5 // 4
    offset, _ = lower_packing(problem, stacked(problem), goal=goal, work=20_000_000, report=said.append)
    assert HEIGHT <= peak_of(problem, offset) <= goal
    assert said
    assert all(later.peak <= earlier.peak for earlier, later in pairwise(said))


SCRIPT = """
import json, sys
if sys.argv[1] == "absent":
    sys.modules["numba"] = None
    import importlib.util
    found = importlib.util.find_spec
    importlib.util.find_spec = lambda name, *rest: None if name == "numba" else found(name, *rest)
from benchmarks.tilings import tiling
from tests.unit.planner.pack.test_skyline import stacked
from tmmu.planner.pack.exact.jit import COMPILED
from tmmu.planner.pack import solve
from tmmu.planner.pack.bounds import live_bound
from tmmu.planner.pack.skyline import lower_packing
found = []
for seed in range(4):
    problem = tiling(40, seed)[1]
    found.append(lower_packing(problem, stacked(problem), goal=0, work=300_000))
print(json.dumps([COMPILED, found]))
"""


def search_in_process(numba: str, hash_seed: str) -> list[object]:
    env = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, numba], env=env, capture_output=True, text=True, check=True, timeout=300
    )
    result: list[object] = json.loads(done.stdout)
    return result


def test_offsets_and_work_do_not_depend_on_numba_or_hash_seed() -> None:
    compiled, plain = search_in_process("present", "1"), search_in_process("absent", "2")
    assert compiled[0] != plain[0]
    assert compiled[1] == plain[1]
