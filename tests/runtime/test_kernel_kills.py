"""Compilers that are killed at any time: a library is there whole or not at all, and two processes make it once."""

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.compiler import needs_compiler
from tmmu import torch_private
from tmmu.cache.kernel_files import evict_kernels
from tmmu.fusion import kernel_library

CHUNKS, CHUNK = 20, "x" * 64
COMPILER = f"""
out=""
while [ $# -gt 0 ]; do if [ "$1" = "-o" ]; then out="$2"; fi; shift; done
: > "$out"
i=0
while [ $i -lt {CHUNKS} ]; do printf '{CHUNK}' >> "$out"; sleep 0.002; i=$((i+1)); done
"""
"""A compiler that writes slowly."""


@pytest.fixture
def slow_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    script = tmp_path / "compiler.sh"
    script.write_text(COMPILER)
    monkeypatch.setattr(
        torch_private.cpp_builder.CppBuilder,
        "get_command_line",
        lambda builder: f"sh {script} -o {builder.get_target_file_path()}",
    )
    folder = tmp_path / "kernels"
    folder.mkdir()
    return folder


def compile_alone(path: Path) -> None:
    os.setsid()
    kernel_library._compile(path, "no source")


def kill_at(path: Path, seconds: float) -> None:
    process = multiprocessing.get_context("fork").Process(target=compile_alone, args=(path,))
    process.start()
    time.sleep(seconds)
    assert process.pid is not None
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()  # it has not begun, or has ended
    process.join()


def kill_often(folder: Path, count: int) -> tuple[int, int]:
    """(libraries that were whole, those that were not there)."""
    draw, whole = random.Random(0), 0
    for number in range(count):
        path = folder / f"{number}.so"
        kill_at(path, draw.uniform(0, 0.15))
        if path.exists():
            assert path.read_text() == CHUNK * CHUNKS
            whole += 1
    return whole, count - whole


@needs_compiler
@pytest.mark.slow
def test_a_killed_compiler_leaves_no_half_a_library(slow_compiler: Path) -> None:
    whole, absent = kill_often(slow_compiler, 40)
    assert whole + absent == 40
    assert absent > 0
    evict_kernels(slow_compiler, limit=1 << 30, before=1 << 63)
    assert not list(slow_compiler.glob("compile_*"))
    assert len(list(slow_compiler.glob("*.so"))) == whole


@needs_compiler
@pytest.mark.long
def test_a_thousand_kills_leave_no_half_a_library(slow_compiler: Path) -> None:
    whole, absent = kill_often(slow_compiler, 1000)
    assert min(whole, absent) > 0
