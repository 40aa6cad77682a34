"""Kernels that a program would run if they were compiled, and the process that compiles them after some runs."""

import itertools
import logging
import os
import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from threading import Thread
from threading import enumerate as enumerate_threads
from typing import Final

import torch

from tmmu.fusion.background.group_bytes import dump_groups
from tmmu.fusion.call_form import KernelForm
from tmmu.fusion.group import FusionGroup

RUNS_BEFORE_COMPILE: Final = 4
"""Runs after which kernels are compiled: a script that runs its model a few times starts no compiler."""

_LOG: Final = logging.getLogger("tmmu")
_THREAD_NAME: Final = "tmmu-compile"
_PROCESS: Final = "tmmu.fusion.background.compile_process"
_begun: Final[dict[tuple[str, ...], object]] = {}
"""By what is compiled, who began it. One attempt in a process and in those forked from it, however it ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelOrder:
    """The kernels of a fused program: what ``load_kernels`` is called with, and for how many threads they are."""

    groups: tuple[FusionGroup, ...]
    forms: Mapping[str, KernelForm]
    folder: Path
    threads: int

    @property
    def key(self) -> tuple[str, ...]:
        """Equal for orders of one library."""
        return (str(self.folder), str(self.threads), *sorted({group.digest for group in self.groups}))


def order_kernels(groups: Sequence[FusionGroup], forms: Mapping[str, KernelForm], folder: Path) -> KernelOrder:
    """The order of these kernels for the threads that torch has now, which are a part of a library's name."""
    return KernelOrder(groups=tuple(groups), forms=dict(forms), folder=folder, threads=torch.get_num_threads())


class CountedRuns:
    """Counts the runs of a program, and has its kernels compiled after ``RUNS_BEFORE_COMPILE`` of them."""

    def __init__(self, order: KernelOrder) -> None:
        self._order = order
        self._runs = itertools.count(1)

    def count(self) -> None:
        """One run more, from any thread. Waits for nothing."""
        if next(self._runs) == RUNS_BEFORE_COMPILE:
            compile_beside(self._order)


def compile_beside(order: KernelOrder) -> Thread | None:
    """Begins to compile an order in a process of low priority, once; returns the thread that waits for it.

    The process ends with this one. The thread is a daemon, which a forked process does not have, so nobody else waits.
    A failure is one line of the log.
    """
    attempt = object()
    if _begun.setdefault(order.key, attempt) is not attempt:
        return None
    thread = Thread(target=_run_process, args=(order,), name=_THREAD_NAME, daemon=True)
    thread.start()
    return thread


def threads() -> tuple[Thread, ...]:
    """The threads of this process that wait for a compile."""
    return tuple(thread for thread in enumerate_threads() if thread.name == _THREAD_NAME)


def start_process() -> "Popen[bytes]":
    """A fresh interpreter that reads an order and compiles it; it leads a group of processes, its compiler's too."""
    paths = os.pathsep.join([*filter(None, sys.path), str(Path(__file__).parents[3])])
    command = [sys.executable, "-P", "-m", _PROCESS, str(os.getpid())]
    environment = {**os.environ, "PYTHONPATH": paths}
    return Popen(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environment, start_new_session=True)


def _run_process(order: KernelOrder) -> None:
    try:
        data = dump_groups(order.groups)
        with start_process() as process:
            said, _ = process.communicate(
                pickle.dumps((data, dict(order.forms), str(order.folder), order.threads)), timeout=None
            )
    except (OSError, pickle.PicklingError) as error:
        _report(str(error))
        return
    if process.returncode:
        _report(said.decode(errors="replace").strip() or f"the process ended with status {process.returncode}")


def _report(reason: str) -> None:
    _LOG.warning("nothing will be fused: the kernels do not compile here: %s", reason[:300])
