"""The GPU benchmark runs on the CPU too: every variant equals the module, and no wait is missing."""

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


def test_variants_equal_the_module_bit_for_bit() -> None:
    done = run("--device", "cpu", "--small", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["name"] for row in rows] == [variant.name for variant in gpu_ring.VARIANTS]
    assert all(row["wrong"] == row["races"] == 0 and row["share_ppm"] > 0 for row in rows)
    moved = {row["name"]: row["pass_bytes"] for row in rows}
    assert moved["cyclic"] < moved["double"]


def test_benchmark_without_a_gpu_is_refused() -> None:
    if not torch.cuda.is_available():
        done = run()
        assert (done.returncode, "--device cpu runs the same rows there" in done.stderr) == (2, True)
