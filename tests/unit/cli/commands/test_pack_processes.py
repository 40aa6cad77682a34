"""The same packing in every process; a million rows in linear memory."""

import os
import resource
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

import pytest

from tests.problems import long_graph, random_problem
from tests.strategies import seeded
from tmmu.planner.liveness import analyze_liveness
from tmmu.planner.order import derive_order


def write(path: Path, rows: list[tuple[int, int, int]]) -> None:
    lines = (f"i{n},{birth},{death},{size}\n" for n, (birth, death, size) in enumerate(rows))
    path.write_text("id,lower,upper,size\n" + "".join(lines))


def run(folder: Path, *arguments: str, **environment: str) -> bytes:
    command = [sys.executable, "-c", "from tmmu.cli.main import main; main()", "pack", *arguments]
    subprocess.run(command, cwd=folder, env=os.environ | environment, check=True, stdout=subprocess.DEVNULL)
    return (folder / "out.csv").read_bytes()


def cut(width: int, height: int, pieces: int, seed: int) -> list[tuple[int, int, int]]:
    """A rectangle of time and bytes cut into pieces: a packing at the bound that no simple order finds again."""
    pick = seeded(seed)
    boxes = [(0, width, 0, height)]
    while len(boxes) < pieces:
        boxes.sort(key=lambda box: ((box[1] - box[0]) * (box[3] - box[2]), box))
        left, right, low, high = boxes.pop()
        if right - left > 1 and (pick(2) or high - low < 2):
            middle = left + 1 + pick(right - left - 1)
            boxes += [(left, middle, low, high), (middle, right, low, high)]
        else:
            middle = low + 1 + pick(high - low - 1)
            boxes += [(left, right, low, middle), (left, right, middle, high)]
    return [(left, right, high - low) for left, right, low, high in boxes]


def test_hash_seed_folder_and_compilation_change_nothing(tmp_path: Path) -> None:
    outputs = []
    for number, environment in enumerate(({}, {"PYTHONHASHSEED": "7"}, {"NUMBA_DISABLE_JIT": "1"})):
        folder = tmp_path / str(number)
        folder.mkdir()
        write(folder / "in.csv", cut(40, 1000, 40, seed=3))
        outputs.append(run(folder, "in.csv", "-o", "out.csv", "--nodes", "3000", **environment))
    assert outputs[0] == outputs[1] == outputs[2]


@pytest.mark.long
def test_million_rows_are_packed_in_linear_memory(tmp_path: Path) -> None:
    used = []
    for items in (250_000, 1_000_000):
        problem = random_problem(items, 30)
        write(tmp_path / "in.csv", list(zip(problem.birth, problem.death, problem.size, strict=True)))
        run(tmp_path, "in.csv", "-o", "out.csv")
        used.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
    assert used[1] < 4.5 * used[0]


@pytest.mark.slow
def test_hundred_thousand_rows_of_a_chain_lie_at_the_bound(tmp_path: Path) -> None:
    graph = long_graph(100_000)
    ranges = analyze_liveness(graph, derive_order(graph, mode="inference"), mode="inference", preset="train_full")
    rows = [(b, d, graph.buffers.bytes[n]) for n, (b, d) in enumerate(zip(ranges.birth, ranges.death, strict=True))]
    write(tmp_path / "in.csv", rows)
    offsets = [int(line.rsplit(",", 1)[1]) for line in run(tmp_path, "in.csv", "-o", "out.csv").decode().split()[1:]]
    steps = [0] * (max(death for _, death, _ in rows) + 1)
    for birth, death, size in rows:
        steps[birth] += size
        steps[death] -= size
    peak = max(offset + size for offset, (_, _, size) in zip(offsets, rows, strict=True))
    assert peak == max(accumulate(steps))
