"""Triton kernels of fused ops without a GPU: run by Triton's interpreter inside a plan, and compiled for GPUs."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed: pip install --no-deps triton"),
]


def run(folder: Path, *arguments: str, **environment: str) -> Any:
    command = [sys.executable, "-m", "tests.runtime.interpreted_launches", *arguments]
    settings = os.environ | {"TRITON_CACHE_DIR": str(folder)} | environment
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=settings, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_plan_whose_kernels_triton_interprets_is_near_and_sound(tmp_path: Path) -> None:
    rows = run(tmp_path, TRITON_INTERPRET="1")
    assert {name: (row["kernels"], row["fused"]) for name, row in rows.items()} == {"Net": (1, 1), "Cache": (3, 3)}
    assert all(row["near"] and row["launches"] == 1 and row["compared"] > 0 for row in rows.values())


def test_every_kernel_compiles_for_gpus_and_wants_no_memory_of_its_own(tmp_path: Path) -> None:
    rows = run(tmp_path, "compile")
    assert rows == {"Net 80": [2, 0], "Net 90": [2, 0], "Cache 80": [8, 0], "Cache 90": [8, 0]}
