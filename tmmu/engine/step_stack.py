"""One stack of an engine: the steps that are bound to it, who runs them, and the device stream on which they run."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from tmmu.engine.pause.parts_in_pieces import PartsInPieces
from tmmu.engine.pause.pauses import Pauses
from tmmu.engine.steps.step_runner import StepRunner
from tmmu.engine.steps.steps_by_shape import StepsByShape


class StackStream:
    """Where the steps of one stack are issued, so that those of others run beside them; nothing on a CPU.

    ``is_alone``: there is no other stack, and steps are issued where their caller is.
    """

    def __init__(self, device: torch.device, *, is_alone: bool, cuda: Any = torch.cuda) -> None:
        self._cuda = cuda
        self._stream = None if is_alone or device.type != "cuda" else cuda.Stream(device)

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Block whose work runs behind all that the caller has issued; at its end the host waits for it.

        So a session finds its state whatever stack its next step runs in.
        """
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(self._cuda.current_stream(self._stream.device))
        try:
            with self._cuda.stream(self._stream):
                yield
        finally:
            self._stream.synchronize()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStack:
    """``number``: its place among the stacks. ``pieces``: what reads prompts that yield; ``None``: none do."""

    number: int
    steps: StepsByShape
    runner: StepRunner
    pauses: Pauses
    pieces: PartsInPieces | None
    stream: StackStream
