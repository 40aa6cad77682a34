"""The ranks of ``tmmu run --world``: a child process each, which runs the same command as one rank of all.

The standard input of a rank is the end of a pipe whose other end this process alone has. It ends with this process,
however that ends, and with it the ranks end, which else would wait for each other.
"""

import os
import sys
from collections.abc import Iterator, MutableMapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, Popen
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, Final

from tmmu.cli.error_boundary import Interrupted
from tmmu.cli.planning_process import command_line, last_record, refusal_of_child
from tmmu.errors import InternalError, InvalidConfig
from tmmu.passes.capture.ranks.running_rank import environment_of_rank

PROCESSES_MAX: Final = 64
"""So many ranks are started on one machine: each has a model, a trace and a plan of its own."""
GRACE_SECONDS: Final = 5
"""How long the other ranks have to say what is wrong with them, after the first has ended with an error."""
BLAMES_OTHERS: Final = "see what the other ranks say"
"""The advice of a rank whose call between ranks failed."""
MEETING_FOLDER: Final = "TMMU_MEETING_FOLDER"
"""The variable that tells a rank that its standard input ends with the process which started it, and which folder
nobody removes then."""


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
    rank that does not blame the others. No rank is left running, and none unwaited for, whatever is raised.
    ``INVALID_CONFIG`` where the system starts no more processes.
    """
    with TemporaryDirectory(prefix="tmmu-ranks-") as folder, ExitStack() as stack:
        meeting = Path(folder) / "meeting"
        ends_with_this = stack.enter_context(_pipe())
        children: list[Popen[str]] = []
        for rank in range(world):
            environment = environment_of_rank(rank, world, meeting.as_uri()) | {MEETING_FOLDER: folder}
            children.append(stack.enter_context(_child(words, environment, ends_with_this)))
        pool = stack.enter_context(ThreadPoolExecutor(world))
        stack.callback(_end_all, children)  # before the pool waits for its threads
        runs = [pool.submit(_record_of, rank, child) for rank, child in enumerate(children)]
        wait(runs, return_when=FIRST_EXCEPTION)
        wait(runs, timeout=GRACE_SECONDS)
        failures = [run.exception() for run in runs if run.done() and run.exception() is not None]
        if not failures:
            return [run.result() for run in runs]
        raise _refusal(failures)


@contextmanager
def _pipe() -> Iterator[int]:
    """The end of a pipe from which nothing is read until this process, or the block, has ended."""
    end, other = os.pipe()
    try:
        yield end
    finally:
        os.close(end)
        os.close(other)


@contextmanager
def _child(words: Sequence[str], environment: dict[str, str], stdin: int) -> Iterator[Popen[str]]:
    """A process that is one rank; killed and waited for at the end of the block."""
    threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}  # as torchrun has it
    command = command_line(["run", "--json", *words], None)
    variables = os.environ | threads | environment
    try:
        started = Popen(command, env=variables, stdin=stdin, stdout=PIPE, stderr=PIPE, text=True, errors="replace")
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidConfig(
            f"rank {environment['RANK']} of {environment['WORLD_SIZE']} cannot be started: {reason}",
            fix="run fewer ranks, or make room for their processes",
        ) from error
    with started as child:
        try:
            yield child
        finally:
            child.kill()


def _end_all(children: Sequence[Popen[str]]) -> None:
    for child in children:
        child.kill()


def end_with_starter(environment: MutableMapping[str, str]) -> None:
    """From now on this process ends when the one ends that started it as a rank, at once, and with nothing written
    after it; nothing where none did. Processes that this one starts are no ranks.
    """
    folder = environment.pop(MEETING_FOLDER, None)
    if folder is None:
        return
    watched = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    Thread(target=_end_at_end_of, args=(watched, Path(folder)), name="tmmu-rank-starter", daemon=True).start()


def _end_at_end_of(watched: int, folder: Path) -> None:
    while os.read(watched, 1):
        pass
    with suppress(OSError):
        (folder / "meeting").unlink()
    with suppress(OSError):  # the last rank removes it
        folder.rmdir()
    os._exit(Interrupted.exit_code)


def _record_of(rank: int, child: Popen[str]) -> dict[str, Any]:
    out, err = child.communicate()
    if child.returncode:
        raise _EndedRank(rank, out, err, child.returncode)
    try:
        return last_record(out)
    except ValueError as error:
        raise InternalError(f"rank {rank}: running ended and said nothing", fix="do it by itself") from error


def _refusal(failures: Sequence[BaseException | None]) -> BaseException:
    ended = [failure for failure in failures if isinstance(failure, _EndedRank)]
    others = [failure for failure in failures if failure is not None and not isinstance(failure, _EndedRank)]
    if others:
        return others[0]
    first = min(ended, key=lambda failure: (BLAMES_OTHERS in failure.out, failure.rank))
    sys.stderr.writelines(first.err.splitlines(keepends=True)[:-1])
    return refusal_of_child(f"rank {first.rank}", first.out, first.code, verb="running")
