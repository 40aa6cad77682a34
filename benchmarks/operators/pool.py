"""Processes that run pairs of operator and dtype: one that crashes or hangs costs one row, and is replaced.

Each of ``jobs`` threads owns a process (``worker.py``) and asks it for one pair at a time. A process is replaced after
``PAIRS_PER_PROCESS`` pairs as well, since Dynamo's memory grows with what it compiles.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

PAIRS_PER_PROCESS: Final = 60
START_SECONDS: Final = 120
COMMAND: Final = (sys.executable, "-m", "benchmarks.operators.worker")
Pair = tuple[str, str]
Rows = Sequence[dict[str, str]]


class Worker:
    """One process; ``ask`` waits for its answer at most so many seconds."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._rest = b""
        self.asked = 0

    def ask(self, request: dict[str, Any], seconds: float) -> Any:
        """The answer; ``TimeoutError``, or ``ChildProcessError`` with how the process ended."""
        self.asked += 1
        assert self._process.stdin is not None  # it was opened as a pipe
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        return json.loads(self._line(seconds))

    def _line(self, seconds: float) -> bytes:
        assert self._process.stdout is not None  # it was opened as a pipe
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._process.stdout], [], [], seconds)
            if not ready:
                raise TimeoutError(f"no answer in {seconds:g} s")
            read = os.read(self._process.stdout.fileno(), 1 << 16)
            if not read:
                raise ChildProcessError(f"the process ended with {self._process.wait()}")
            self._rest += read
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


class _Seat:
    """The process of one thread, started when first needed."""

    def __init__(self, samples: int, seconds: float) -> None:
        self._samples, self._seconds = samples, seconds
        self._worker: Worker | None = None

    def rows(self, pair: Pair) -> Rows:
        """The rows of a pair, or the one row that says how its process ended."""
        if self._worker is not None and self._worker.asked >= PAIRS_PER_PROCESS:
            self.close()
        is_new = self._worker is None
        worker = self._worker = self._worker or Worker()
        request = {"operator": pair[0], "dtype": pair[1], "samples": self._samples}
        try:
            return worker.ask(request, self._seconds + (START_SECONDS if is_new else 0))  # type: ignore[no-any-return]
        except (TimeoutError, ChildProcessError) as error:
            self.close()
            outcome = "hang" if isinstance(error, TimeoutError) else "crash"
            return [{"sample": "", "route": "", "outcome": outcome, "reason": str(error), "excuse": ""}]

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._worker = None


def all_pairs() -> list[Pair]:
    """Every (operator, dtype) of the database, in order."""
    worker = Worker()
    try:
        return [(name, dtype) for name, dtype in worker.ask({"list": True}, START_SECONDS)]
    finally:
        worker.close()


def run_pairs(
    pairs: Iterable[Pair], *, samples: int, seconds: float, jobs: int, report: Callable[[Pair, Rows], None]
) -> None:
    """Run the pairs and report each when it is done; ``report`` is called by one thread at a time."""
    seats = [_Seat(samples, seconds) for _ in range(jobs)]
    free = list(seats)

    def run(pair: Pair) -> tuple[Pair, Rows]:
        seat = free.pop()
        try:
            return pair, seat.rows(pair)
        finally:
            free.append(seat)

    try:
        with ThreadPoolExecutor(jobs) as threads:
            for pair, rows in threads.map(run, pairs):
                report(pair, rows)
    finally:
        for seat in seats:
            seat.close()
