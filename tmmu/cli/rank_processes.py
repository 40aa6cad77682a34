"""The ranks of ``tmmu run --world``: a child process each, which runs the same command as one rank of all."""

import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from tempfile import TemporaryDirectory
from typing import Any, Final

from tmmu.cli.planning_process import command_line, refusal_of_child
from tmmu.passes.capture.ranks.running_rank import environment_of_rank

PROCESSES_MAX: Final = 64
"""So many ranks are started on one machine: each has a model, a trace and a plan of its own."""
GRACE_SECONDS: Final = 5
"""How long the other ranks have to say what is wrong with them, after the first has ended with an error."""
BLAMES_OTHERS: Final = "see what the other ranks say"
"""The advice of a rank whose call between ranks failed."""


@dataclass(frozen=True, slots=True)
class _EndedRank(Exception):
    """A rank that ended with an error, and what it wrote."""

    rank: int
    out: str
    err: str
    code: int


def run_ranks(words: Sequence[str], world: int) -> list[dict[str, Any]]:
    """The record of ``tmmu run --json`` of each rank; ``words`` is its command line.

    Where ranks end with an error, the others are ended too, and it is raised under the rank's name: that of the first
    rank that does not blame the others.
    """
    with TemporaryDirectory(prefix="tmmu-ranks-") as folder, ExitStack() as stack:
        meeting = (Path(folder) / "meeting").as_uri()
        children = [
            stack.enter_context(_child(words, environment_of_rank(rank, world, meeting))) for rank in range(world)
        ]
        stack.callback(_end_all, children)
        pool = stack.enter_context(ThreadPoolExecutor(world))
        stack.callback(_end_all, children)  # before the pool waits for its threads
        runs = [pool.submit(_record_of, rank, child) for rank, child in enumerate(children)]
        wait(runs, return_when=FIRST_EXCEPTION)
        wait(runs, timeout=GRACE_SECONDS)
        failures = [run.exception() for run in runs if run.done() and run.exception() is not None]
        if not failures:
            return [run.result() for run in runs]
        raise _refusal(failures)


def _child(words: Sequence[str], environment: dict[str, str]) -> Popen[str]:
    threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}  # as torchrun has it
    return Popen(
        command_line(["run", "--json", *words], None),
        env=os.environ | threads | environment,
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        text=True,
        errors="replace",
    )


def _end_all(children: Sequence[Popen[str]]) -> None:
    for child in children:
        child.kill()


def _record_of(rank: int, child: Popen[str]) -> dict[str, Any]:
    out, err = child.communicate()
    if child.returncode:
        raise _EndedRank(rank, out, err, child.returncode)
    record: dict[str, Any] = json.loads(out)
    return record


def _refusal(failures: Sequence[BaseException | None]) -> BaseException:
    ended = [failure for failure in failures if isinstance(failure, _EndedRank)]
    others = [failure for failure in failures if failure is not None and not isinstance(failure, _EndedRank)]
    if others:
        return others[0]
    first = min(ended, key=lambda failure: (BLAMES_OTHERS in failure.out, failure.rank))
    sys.stderr.writelines(first.err.splitlines(keepends=True)[:-1])
    return refusal_of_child(f"rank {first.rank}", first.out, first.code, verb="running")
