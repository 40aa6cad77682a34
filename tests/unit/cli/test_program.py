"""The program as a process: streams that close or fill up, interruptions, a terminal."""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from tests.unit.cli.graphs import Shell

PROGRAM: Final = (sys.executable, "-c", "from tmmu.cli.main import main; main()")
NET: Final = """
import torch
def model():
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 8))
def inputs():
    return (torch.zeros(2, 8),)
def loss(model, x):
    return model(x).square().mean()
"""
SLOW_MODEL: Final = """
import pathlib, time
pathlib.Path("started").touch()
time.sleep(60)
"""


@pytest.mark.parametrize("words", [("show", "--trace"), ("show",), ("show", "--json"), ("verify",), ("show", "--peak")])
def test_closed_pipe_ends_the_program_quietly(shell: Shell, words: tuple[str, ...]) -> None:
    plan = shell.plan()
    reader, writer = os.pipe()
    os.close(reader)
    command = [*PROGRAM, words[0], plan, *words[1:]]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_full_disk_behind_stdout_is_one_line(shell: Shell) -> None:
    plan = shell.plan()
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([*PROGRAM, "show", plan], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("tmmu: INVALID_CONFIG: the output cannot be written: ")
    assert done.stderr.count("\n") == 1


def test_closed_streams_are_no_fault(shell: Shell) -> None:
    plan = shell.plan()
    command = f"exec {sys.executable} -c '{PROGRAM[2]}' verify {plan} >&- 2>&-"
    assert subprocess.run(["bash", "-c", command], check=False).returncode == 0


def test_path_that_the_terminal_cannot_spell_is_printed_escaped(shell: Shell) -> None:
    plan = shell.plan().rename("größe.plan.cbor")
    Path("small.ir.cbor").rename("größe.ir.cbor")
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*PROGRAM, "verify", plan], env=ascii_only, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("sound: gr\\xf6\\xdfe.plan.cbor")


def test_interruption_is_one_line_and_writes_nothing(shell: Shell) -> None:
    Path("slow.py").write_text(SLOW_MODEL)
    hear = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    hearing = f"{hear}; from tmmu.cli.main import main; main()"
    command = [sys.executable, "-c", hearing, "plan", "slow.py"]  # a job in the background starts deaf to SIGINT
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not Path("started").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "tmmu: INTERRUPTED: stopped before the end\n")
    assert not list(Path().glob("*.cbor"))


def test_plan_and_graph_are_the_same_bytes_in_any_process(shell: Shell) -> None:
    """Another hash seed, another folder, another number of threads, another way to name the file."""
    flat, nested = Path("here"), Path("there/deep")
    for folder in (flat, nested):
        folder.mkdir(parents=True)
        (folder / "net.py").write_text(NET)
    runs = (
        (flat, "net.py", {"PYTHONHASHSEED": "1", "OMP_NUM_THREADS": "1"}),
        (nested, nested.absolute() / "net.py", {"PYTHONHASHSEED": "2", "OMP_NUM_THREADS": "2"}),
    )
    for folder, target, environment in runs:
        command = [*PROGRAM, "plan", target, "--mode", "backward", "--optimizer", "adamw"]
        subprocess.run(command, cwd=folder, env=os.environ | environment, check=True, capture_output=True)
    for name in ("net.plan.cbor", "net.ir.cbor"):
        assert (flat / name).read_bytes() == (nested / name).read_bytes()


def test_terminal_shows_the_seconds(shell: Shell) -> None:
    plan = shell.plan()
    assert "judge" not in shell.tmmu("plan", "given.ir.cbor", "-o", plan).out
    shown = _on_a_terminal("plan", "given.ir.cbor", "-o", str(plan), "--no-cache")
    assert b"check 0." in shown
    assert b"\x1b[1msmall: inference on cpu" in shown


def _on_a_terminal(*arguments: str) -> bytes:
    primary, secondary = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm"}
    with subprocess.Popen([*PROGRAM, *arguments], stdout=secondary, stderr=secondary, env=environment) as process:
        os.close(secondary)
        shown = b""
        while chunk := _read(primary):
            shown += chunk
    os.close(primary)
    assert process.returncode == 0
    return shown


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""
