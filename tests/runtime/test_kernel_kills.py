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


def compile_alone(path: Path, text: str) -> None:
    os.setsid()
    kernel_library._compile(path, text)


def kill_at(path: Path, seconds: float, text: str = "no source") -> None:
    process = multiprocessing.get_context("fork").Process(target=compile_alone, args=(path, text))
    process.start()
    time.sleep(seconds)
    assert process.pid is not None
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()  # it has not begun, or has ended
    process.join()


def seconds_of_one(path: Path, text: str = "no source") -> float:
    """What a compilation takes here and now, in a process of its own as all others; its library goes again."""
    begin = time.monotonic()
    process = multiprocessing.get_context("fork").Process(target=compile_alone, args=(path, text))
    process.start()
    process.join()
    path.unlink()
    return time.monotonic() - begin


def kill_often(folder: Path, count: int) -> tuple[int, int]:
    """(libraries that were whole, those that were not there)."""
    draw, whole, longest = random.Random(0), 0, seconds_of_one(folder / "first.so")
    for number in range(count):
        path = folder / f"{number}.so"
        kill_at(path, draw.uniform(0, 1.5 * longest))
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


@needs_compiler
@pytest.mark.long
def test_the_real_compiler_killed_twenty_times_leaves_no_bad_library(tmp_path: Path) -> None:
    text = kernel_library._unit({}, {}) + 'extern "C" int answer() { return 42; }\n#include <ATen/cpu/vec/vec.h>\n'
    longest = seconds_of_one(tmp_path / "first.so", text)
    draw = random.Random(0)
    paths = [tmp_path / f"{number}.so" for number in range(20)]
    for path in paths:
        kill_at(path, draw.uniform(0, 1.5 * longest), text)
    whole = [path for path in paths if path.exists()]
    assert 0 < len(whole) < len(paths)
    for path in whole:
        assert kernel_library._load(path).answer() == 42
    evict_kernels(tmp_path, limit=1 << 30, before=1 << 63)
    assert not list(tmp_path.glob("compile_*"))
    kernel_library._compile(paths[0], text)
    assert kernel_library._load(paths[0]).answer() == 42
