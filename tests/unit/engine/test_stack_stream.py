"""The device stream of a stack: behind what its caller has issued, and over when the step is."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tmmu.engine.step_stack import StackStream


class Cuda:
    """Notes what it is asked for."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def Stream(self, device: torch.device) -> Any:  # noqa: N802 - torch's name
        log = self.log

        class OwnStream:
            def __init__(self) -> None:
                self.device = device

            def wait_stream(self, other: str) -> None:
                log.append(f"wait for {other}")

            def synchronize(self) -> None:
                log.append("host waits")

        return OwnStream()

    def current_stream(self, device: torch.device) -> str:
        return f"the caller on {device}"

    @contextmanager
    def stream(self, _: Any) -> Iterator[None]:
        self.log.append("begin")
        yield
        self.log.append("end")


def test_step_runs_behind_its_caller_and_the_host_waits_for_its_end() -> None:
    cuda = Cuda()
    with StackStream(torch.device("cuda:0"), is_alone=False, cuda=cuda).activate():
        cuda.log.append("step")
    assert cuda.log == ["wait for the caller on cuda:0", "begin", "step", "end", "host waits"]


def test_one_stack_and_a_cpu_have_no_stream_of_their_own() -> None:
    cuda = Cuda()
    for device, is_alone in (("cuda:0", True), ("cpu", False)):
        with StackStream(torch.device(device), is_alone=is_alone, cuda=cuda).activate():
            cuda.log.append("step")
    assert cuda.log == ["step", "step"]
