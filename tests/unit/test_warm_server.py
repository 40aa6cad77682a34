"""Processes that start with all modules imported are processes: streams, codes, signals, and nothing of another run."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.warm_server import FIXED, WarmPython


def run(warm: WarmPython, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [warm.python(), *arguments]
    return subprocess.run(command, env=os.environ | more, input="said\n", capture_output=True, text=True, check=False)


def test_process_has_streams_folder_variables_and_arguments_of_its_own(
    warm_python: WarmPython, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("beside.py").write_text("NAME = __name__\n")
    Path("script.py").write_text(
        "import os, sys\nimport beside\n"
        "print(input(), sys.argv, os.getcwd(), os.environ['SHOWN'], __name__, beside.NAME, 'torch' in sys.modules)\n"
        "print('to stderr', file=sys.stderr)\n"
    )
    for arguments, name in ((("script.py", "a"), "script.py"), (("-c", Path("script.py").read_text(), "a"), "-c")):
        done = run(warm_python, *arguments, SHOWN="shown")
        assert done.stdout == f"said ['{name}', 'a'] {tmp_path} shown __main__ beside True\n"
        assert (done.returncode, done.stderr) == (0, "to stderr\n")
    assert run(warm_python, "-P", "-c", "import beside").returncode == 1


@pytest.mark.parametrize(
    ("code", "exit_code", "stderr"),
    [
        ("raise SystemExit", 0, ""),
        ("raise SystemExit(5)", 5, ""),
        ("raise SystemExit('no')", 1, "no\n"),
        ("import atexit; atexit.register(print, 'last'); print('first')", 0, ""),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL, ""),
        ("import os; os.kill(os.getpid(), 15)", -signal.SIGTERM, ""),
    ],
)
def test_exit_is_that_of_the_process(warm_python: WarmPython, code: str, exit_code: int, stderr: str) -> None:
    done, real = run(warm_python, "-c", code), subprocess.run([sys.executable, "-c", code], check=False)
    assert (done.returncode, done.stderr) == (exit_code, stderr)
    assert real.returncode == exit_code
    assert done.stdout == ("first\nlast\n" if "atexit" in code else "")


def test_nothing_of_a_run_is_left_for_the_next(warm_python: WarmPython) -> None:
    code = (
        "import torch; print(hasattr(torch, 'left'), torch.is_grad_enabled()); torch.left = torch.set_grad_enabled(0)"
    )
    assert [run(warm_python, "-c", code).stdout for _ in range(2)] == ["False True\n"] * 2


def test_process_ends_with_the_program_that_asked_for_it(warm_python: WarmPython, tmp_path: Path) -> None:
    number = tmp_path / "number"
    code = f"import os, pathlib, time; pathlib.Path({str(number)!r}).write_text(f'{{os.getpid()}}\\n'); time.sleep(600)"
    with subprocess.Popen([warm_python.python(), "-c", code]) as client:
        wait_until(lambda: number.exists() and number.read_text().endswith("\n"))
        client.kill()
    wait_until(lambda: not alive(int(number.read_text())))


def wait_until(reached: object) -> None:
    assert callable(reached)
    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("name", FIXED)
def test_what_a_new_interpreter_alone_has_is_refused(warm_python: WarmPython, name: str) -> None:
    """Else a test of other hash seeds would have the same one each time, and could not fail."""
    done = run(warm_python, "-c", "pass", **{name: "7"})
    assert (done.returncode, done.stderr) == (70, f"a warm process cannot have its own {name}\n")
