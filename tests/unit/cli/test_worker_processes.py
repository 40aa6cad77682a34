"""Processes that plan beside a command: what they say, and that none outlives it."""

import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tmmu.cli.worker_processes import worker_processes
from tmmu.errors import InvalidConfig


def kill_worker() -> None:
    """A command one of whose workers is killed."""
    with worker_processes(1) as pool:
        pool.submit(os.kill, pool.submit(os.getpid).result(), signal.SIGKILL).result()


def test_a_worker_that_was_killed_is_one_clear_line() -> None:
    with pytest.raises(InvalidConfig, match="a process of 1 that plan at once was ended") as refused:
        kill_worker()
    assert "--jobs" in refused.value.fix
    assert not multiprocessing.active_children()


def interrupt_command(processes: list[int]) -> None:
    """A command that is interrupted while its worker is at work."""
    with worker_processes(1) as pool:
        processes.append(pool.submit(os.getpid).result())
        pool.submit(time.sleep, 3600)
        raise KeyboardInterrupt


def test_an_interrupted_command_waits_for_no_worker() -> None:
    processes: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        interrupt_command(processes)
    assert not Path(f"/proc/{processes[0]}").exists()


def hold_worker(sender: Connection) -> None:
    """A command with a worker that is at work; says which process that is."""
    with worker_processes(1) as pool:
        sender.send(pool.submit(os.getpid).result())
        pool.submit(time.sleep, 3600).result()


def test_workers_end_with_a_killed_command() -> None:
    receiver, sender = multiprocessing.Pipe(duplex=False)
    command = multiprocessing.get_context("spawn").Process(target=hold_worker, args=(sender,))
    command.start()
    worker = receiver.recv()
    command.kill()
    command.join()
    for _ in range(600):
        if not is_running(worker):
            return
        time.sleep(0.1)
    pytest.fail("a worker of a killed command is still there")


def is_running(process: int) -> bool:
    """Whether there is such a process, and it is none that has ended and waits for its parent."""
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False
