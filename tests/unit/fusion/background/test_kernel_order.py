"""Orders of kernels: handed over whole, begun once, and by nobody whom a forked process would wait for."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tmmu.fusion.background import kernel_order
from tmmu.fusion.background.group_bytes import dump_groups, load_groups
from tmmu.fusion.background.kernel_order import RUNS_BEFORE_COMPILE, CountedRuns, compile_beside, order_kernels
from tmmu.fusion.group import MADE, READ, Base, FusionGroup, GroupMember, TensorRef
from tmmu.fusion.window_views import Strided

WINDOW = Strided(dtype="float32", shape=(4,), stride=(1,), offset=0)
READS = "import sys; data = sys.stdin.buffer.read(); "


def group(scale: float = 2.0) -> FusionGroup:
    bases = (Base(kind=READ, window=WINDOW, result=WINDOW), Base(kind=MADE, window=WINDOW, result=WINDOW))
    member = GroupMember(
        operator=torch.ops.aten.mul.Scalar,
        args=(TensorRef(0, WINDOW), scale),
        kwargs=(("dtype", torch.float32), ("memory_format", torch.contiguous_format)),
        results=(1,),
    )
    return FusionGroup(bases=bases, members=(member,))


@pytest.fixture(autouse=True)
def _nothing_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_order, "_begun", {})


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[Any]]:
    """Has ``start_process`` run a text of Python instead; returns the list of processes that it has started."""

    def stand_in(text: str) -> list[Any]:
        processes: list[Any] = []

        def start() -> Any:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            processes.append(subprocess.Popen([sys.executable, "-S", "-c", text], **pipes))
            return processes[-1]

        monkeypatch.setattr(kernel_order, "start_process", start)
        return processes

    return stand_in


def test_groups_are_the_same_groups_in_another_process() -> None:
    (read,) = load_groups(dump_groups((group(),)))
    assert (read.text, read.digest, read.members) == (group().text, group().digest, group().members)
    assert read.members[0].operator is torch.ops.aten.mul.Scalar


def test_a_process_is_started_once_after_so_many_runs(started: Callable[[str], list[Any]], tmp_path: Path) -> None:
    processes = started(READS)
    order = order_kernels([group()], {}, tmp_path)
    runs = CountedRuns(order)
    for _ in range(RUNS_BEFORE_COMPILE - 1):
        runs.count()
    assert not kernel_order._begun
    for _ in range(RUNS_BEFORE_COMPILE + 1):
        runs.count()
    assert list(kernel_order._begun) == [order.key]
    assert compile_beside(order_kernels([group()], {}, tmp_path)) is None
    other = compile_beside(order_kernels([group(3.0)], {}, tmp_path))
    assert other is not None
    other.join()
    for thread in kernel_order.threads():
        thread.join()
    assert len(processes) == 2
    assert [process.returncode for process in processes] == [0, 0], "waited for: no zombie is left"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (READS + "print('no g++ here'); sys.exit(1)", "no g++ here"),
        (READS + "sys.exit(3)", "status 3"),
        ("", ""),
        ("import os; os.close(0); os._exit(5)", "status 5"),
    ],
)
def test_a_failure_is_one_line(
    started: Callable[[str], list[Any]], tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, said: str
) -> None:
    processes = started(text)
    order = order_kernels([group()], {}, tmp_path)
    with caplog.at_level(logging.WARNING, "tmmu"):
        thread = compile_beside(order)
        assert thread is not None
        thread.join()
        assert compile_beside(order) is None, "not tried again"
    assert len(processes) == 1
    assert len(caplog.messages) == (1 if said else 0)
    assert said in "".join(caplog.messages)


def test_an_interpreter_that_is_not_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with caplog.at_level(logging.WARNING, "tmmu"):
        thread = compile_beside(order_kernels([group()], {}, tmp_path))
        assert thread is not None
        thread.join()
    assert len(caplog.messages) == 1


def test_a_forked_process_neither_waits_nor_begins_again(started: Callable[[str], list[Any]], tmp_path: Path) -> None:
    processes = started(READS + "import time; time.sleep(600)")
    order = order_kernels([group()], {}, tmp_path)
    thread = compile_beside(order)
    assert thread is not None
    while not processes:
        thread.join(0.01)
    child = os.fork()
    if not child:
        os._exit(0 if compile_beside(order) is None and not kernel_order.threads() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert thread.is_alive()
    processes[0].kill()
    thread.join()
