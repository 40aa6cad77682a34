"""The GPU check runs on the CPU too, with the few packages that it names alone; every row is as it should be."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_check
from tmmu.errors import PlanUnsound

ROOT = Path(__file__).parents[2]
ABSENT = ("rich", "typer", "transformers", "safetensors", "hypothesis", "networkx", "numba", "filelock")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    hide = f"import sys; sys.modules.update(dict.fromkeys({ABSENT!r})); sys.argv = ['gpu_check', *sys.argv[1:]]; "
    start = "import runpy; runpy.run_module('benchmarks.gpu_check', run_name='__main__')"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", hide + start, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.slow
def test_rows_all_hold_on_the_cpu() -> None:
    done = run("--device", "cpu", "--small", "--json")
    assert done.returncode == 0, done.stderr[-2000:]
    rows = {row["name"]: row for row in json.loads(done.stdout)["rows"]}
    assert list(rows) == [case.name for case in gpu_check.CASES]
    for row in rows.values():
        assert row["fault"] == ""
        assert row["checked"] >= row["same"] + row["near"] > 0
        assert (row["pieces"], row["segments_grown"]) == (1, 0)
        assert 0 < row["planned_allocations"] < row["eager_allocations"]
        assert min(row["replay_ms"], row["calls_ms"], row["eager_ms"]) > 0


def test_row_with_a_fault_is_named_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(case: gpu_check.Case, device: str, *, small: bool) -> gpu_check.Row:
        if case.name == "vision":
            raise PlanUnsound("output 0 is not what a plain run gives", fix="report it")
        return gpu_check.Row(name=case.name, same=1, replay_ms=1.0, calls_ms=2.0, eager_ms=3.0)

    monkeypatch.setattr(gpu_check, "_measure", broken)
    monkeypatch.setattr(sys, "argv", ["gpu_check", "--device", "cpu"])
    assert gpu_check.main() == 1
    out = capsys.readouterr().out
    assert "FAULT vision: PLAN_UNSOUND: output 0" in out
    assert "decode" in out


def test_rows_beyond_the_time_limit_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_check, "SECONDS", -1.0)
    monkeypatch.setattr(sys, "argv", ["gpu_check", "--device", "cpu"])
    assert gpu_check.main() == 1
    assert capsys.readouterr().out.count("left out, no time") == len(gpu_check.CASES)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_gpu_check_without_a_gpu_says_so() -> None:
    done = run()
    assert (done.returncode, "--device cpu runs the same rows there" in done.stderr) == (2, True)


def test_script_needs_only_python() -> None:
    environment = os.environ | {"PYTHON": sys.executable}
    script = str(ROOT / "benchmarks" / "gpu_check.sh")
    done = subprocess.run(["sh", script, "--help"], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, "--device" in done.stdout) == (0, True), done.stderr
