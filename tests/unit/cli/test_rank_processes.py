"""Processes of ranks: none outlives the process that started it, and none is left unwaited for, whatever happens."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tmmu.cli import rank_processes
from tmmu.cli.commits import Checkout
from tmmu.cli.rank_processes import run_ranks
from tmmu.errors import InternalError, InvalidConfig

DEADLINE_S = 60
SLEEPS = "import time; time.sleep(600)"
WATCHES = """
import os, pathlib, sys, time
from tmmu.cli.rank_processes import end_with_starter
end_with_starter(os.environ)
assert not any("TMMU_MEETING_FOLDER" in name for name in os.environ)
assert sys.stdin.read() == ""
pathlib.Path(os.environ["NOTES"], os.environ["RANK"]).write_text(f"{os.getpid()} {os.environ['TMMU_MEETING']}")
time.sleep(600)
"""
STARTS = f"""
import sys
from tmmu.cli import rank_processes
rank_processes.command_line = lambda words, checkout: [sys.executable, "-c", {WATCHES!r}]
rank_processes.run_ranks((), 2)
"""


def _run(monkeypatch: pytest.MonkeyPatch, program: str) -> Callable[[int], list[dict[str, object]]]:
    """``run_ranks`` of so many ranks that run this program; it sees ``rank``."""

    def line(arguments: Sequence[str], checkout: Checkout | None) -> list[str]:
        del arguments, checkout
        return [sys.executable, "-IS", "-c", f"import os, sys; rank = int(os.environ['RANK'])\n{program}"]

    monkeypatch.setattr(rank_processes, "command_line", line)
    monkeypatch.setattr(rank_processes, "GRACE_SECONDS", 0)
    return lambda world: run_ranks((), world)


@pytest.fixture(autouse=True)
def _no_child_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """After each test there is no child that the test started, running or dead, and no folder where ranks meet."""
    started: list[subprocess.Popen[str]] = []

    class Noted(subprocess.Popen[str]):
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **options)  # type: ignore[call-overload]
            started.append(self)

    monkeypatch.setattr(rank_processes, "Popen", Noted)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield
    for child in started:
        assert child.returncode is not None
        with pytest.raises(ChildProcessError):
            os.waitpid(child.pid, os.WNOHANG)
    assert not list(tmp_path.glob("tmmu-ranks-*"))


def await_that(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_gone(process: int) -> bool:
    """Whether it has ended: what is left of it belongs to whoever waits for orphans."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_what_each_rank_says_last_is_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    run = _run(monkeypatch, "print('of the model'); print('{\"rank\": %d}' % rank)")
    assert run(2) == [{"rank": 0}, {"rank": 1}]


@pytest.mark.parametrize("said", ["", "7", "no record"])
def test_a_rank_that_says_nothing_is_named(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    with pytest.raises(InternalError, match="rank 0: running ended and said nothing"):
        _run(monkeypatch, f"print({said!r})")(1)


def test_a_rank_that_was_killed_ends_those_that_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InternalError, match="rank 1: running ended with -9"):
        _run(monkeypatch, f"rank == 1 and os.kill(os.getpid(), 9)\n{SLEEPS}")(3)


def test_where_one_cannot_be_started_none_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    run = _run(monkeypatch, SLEEPS)
    popen = rank_processes.Popen

    def refuse_second(command: Sequence[str], *, env: dict[str, str], **options: object) -> object:
        if env["RANK"] == "1":
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return popen(command, env=env, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(rank_processes, "Popen", refuse_second)
    with pytest.raises(InvalidConfig, match="rank 1 of 3 cannot be started: Resource temporarily unavailable"):
        run(3)


@pytest.mark.parametrize("when", ["environment_of_rank", "wait"])
def test_an_interrupt_leaves_none(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    run = _run(monkeypatch, SLEEPS)
    original = getattr(rank_processes, when)

    def interrupted(*args: object, **options: object) -> object:
        if when == "wait" or args[0] == 1:
            raise KeyboardInterrupt
        return original(*args, **options)

    monkeypatch.setattr(rank_processes, when, interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(2)


@pytest.mark.skipif(sys.platform != "linux", reason="whether a process has ended is read from /proc")
@pytest.mark.parametrize("ended_by", [signal.SIGKILL, signal.SIGTERM])
def test_ranks_end_with_the_process_that_started_them(tmp_path: Path, ended_by: signal.Signals) -> None:
    variables = os.environ | {"NOTES": str(tmp_path), "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", STARTS], env=variables) as starter:
        try:
            notes = [tmp_path / "0", tmp_path / "1"]
            await_that(lambda: all(note.exists() and "meeting" in note.read_text() for note in notes))
        finally:
            starter.send_signal(ended_by)
    ranks = [int(note.read_text().split()[0]) for note in notes]
    await_that(lambda: all(map(is_gone, ranks)))
    assert not list(tmp_path.glob("tmmu-ranks-*"))
