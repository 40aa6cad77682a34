"""What a GPU must show of streaming runs on the CPU too: every way has the module's bits, and no wait is missing."""

import json
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks import gpu_ring

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu_ring", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def test_every_way_has_the_bits_of_the_module() -> None:
    done = run("--device", "cpu", "--small", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["name"] for row in rows] == [way.name for way in gpu_ring.VARIANTS]
    assert all(row["wrong"] == row["races"] == 0 and row["share_ppm"] > 0 for row in rows)
    moved = {row["name"]: row["pass_bytes"] for row in rows}
    assert moved["cyclic"] < moved["double"]


def test_without_a_gpu_it_says_so() -> None:
    if not torch.cuda.is_available():
        done = run()
        assert (done.returncode, "--device cpu runs the same rows there" in done.stderr) == (2, True)
