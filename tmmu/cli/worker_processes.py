"""Processes that plan beside this one: spawned, ended with it, and one that something ended is one clear line."""

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Final

from tmmu.errors import InvalidConfig

SAFE_PATH: Final = "PYTHONSAFEPATH"


@contextmanager
def worker_processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of ``count`` processes, all gone when the block ends, however it does; ``InvalidConfig`` where one died.

    They collect no garbage by themselves, as no command does. An interruption is for this process, which ends them.
    """
    before = set(multiprocessing.active_children())
    spawn = multiprocessing.get_context("spawn")
    with _safe_path():
        pool = ProcessPoolExecutor(count, spawn, initializer=_begin_worker)
        try:
            yield pool
        except BrokenProcessPool as error:
            raise InvalidConfig(
                f"a process of {count} that plan at once was ended from outside, most likely for want of memory",
                fix="give a lower --jobs",
            ) from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in set(multiprocessing.active_children()) - before:
                child.terminate()
                child.join()


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _begin_worker() -> None:
    gc.disable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A killed parent says nothing to its workers, which would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _safe_path() -> Iterator[None]:
    """Child processes import nothing from the current folder, where a ``pickle.py`` could shadow Python's."""
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        del os.environ[SAFE_PATH]
        if before is not None:
            os.environ[SAFE_PATH] = before
