"""The frames of one program: as many as there are steps under way, up to a limit, bound when they are needed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final

import torch
from torch._C import _autograd, _functorch

from tmmu.ir.program import ArgumentView, Program, ValueRef, joint_graph
from tmmu.runtime.execute.step_memory import Frame

FRAMES: Final = 4
"""Steps of one program that may be under way at once inside plans; each takes its own memory."""

Make = Callable[[], Frame]


class Frames:
    """Safe between threads. A frame is handed to one caller at a time, and only while nobody holds what lies in it."""

    def __init__(self, program: Program) -> None:
        self.joint = joint_graph(program)
        self._values = program.graph.values
        self._frames: list[Frame] = []
        self._lock = Lock()

    @contextmanager
    def for_first(self, args: Sequence[Any], make: Make) -> Iterator[Frame | None]:
        """An idle frame bound to these weights, a new one from ``make``, or ``None`` where all are taken."""
        with self._lock:
            self._frames = [frame for frame in self._frames if not frame.idle or frame.here(args)]
            found = next((frame for frame in self._frames if frame.idle), None)
            if found is None and len(self._frames) < FRAMES:
                found = make()
                self._frames.append(found)
            _mark(found)
        with _returned(found):
            yield found

    @contextmanager
    def for_second(self, args: Sequence[Any], *, again: bool) -> Iterator[tuple[Frame | None, bool]]:
        """The frame that holds what these arguments saved, or an idle one to load it into, and whether it is that.

        If the step is to be gone back through ``again``, the frame that holds it is left as it is.
        """
        with self._lock:
            holding = [frame for frame in self._frames if not frame.busy and frame.holds(args)]
            idle = [frame for frame in self._frames if frame.idle and frame.takes(args)]
            found = next(iter([] if again else holding), None) or next(iter(idle), None)
            _mark(found)
        with _returned(found):
            yield found, found not in holding

    def accepts(self, args: Sequence[Any]) -> bool:
        """Whether these are arguments of the second half."""
        return len(args) == len(self.joint.residuals) and all(map(self._alike, args, range(len(args))))

    def _alike(self, arg: Any, at: int) -> bool:
        of = self.joint.residuals[at]
        form = self.joint.forward.outputs[of] if of >= 0 else None
        values = self._values
        if isinstance(form, ValueRef):
            return tuple(arg.shape) == values.shape[form.value] and str(arg.dtype)[6:] == values.dtype[form.value]
        if isinstance(form, ArgumentView):
            return tuple(arg.shape) == form.shape
        return of < 0 or bool(arg == form)

    @property
    def stack_bytes(self) -> tuple[int, ...]:
        """What each frame takes now."""
        return tuple(frame.stack_bytes for frame in self._frames)


def _mark(frame: Frame | None) -> None:
    if frame is not None:
        frame.busy = True


@contextmanager
def _returned(frame: Frame | None) -> Iterator[None]:
    try:
        yield
    finally:
        if frame is not None:
            frame.busy = False


def form_of(args: Sequence[Any], static: frozenset[int] = frozenset()) -> tuple[Any, ...]:
    """Shape, strides and dtype of each argument but the ``static`` ones; a number as it is."""
    return tuple(
        (tuple(arg.shape), arg.stride(), arg.dtype) if isinstance(arg, torch.Tensor) else arg
        for position, arg in enumerate(args)
        if position not in static
    )


def unplannable(args: Sequence[Any]) -> str:
    """Why a call with these arguments is none that a plan can stand for now; empty where it can."""
    if torch._C._len_torch_dispatch_stack() or _functorch.peek_interpreter_stack() is not None:
        return "a mode or transform looks at each operator"
    for arg in args:
        kind = type(arg)
        if kind is not torch.Tensor and kind is not torch.nn.Parameter and kind not in (int, float, bool):
            return f"an argument is a {kind.__name__}"
    return ""


def unbindable(args: Sequence[Any]) -> str:
    """Why nothing can be traced and bound for these arguments now; empty where it can."""
    for arg in args:
        if not isinstance(arg, torch.Tensor):
            continue
        if arg.device.type != "cpu":
            return f"an argument is on {arg.device}"
        if arg.layout is not torch.strided or arg.is_conj() or arg.is_neg():
            return "an argument is not a plain dense tensor"
    return "a profiler is running" if _autograd._profiler_enabled() else ""


def goes_back_again() -> bool:
    """Whether the backward pass that is running leaves what was saved for another one."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())
