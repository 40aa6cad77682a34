"""The memories of one program: as many as steps are under way, up to a limit, bound when they are needed.

Safe between threads. Invariant, under the lock: a memory is given to one caller at a time (``is_busy``), for a forward
half only while no residual in it lives, and for a backward half only if it holds these residuals or is idle. A memory
bound to weights that have been exchanged is dropped once it is idle.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final

import torch

from tmmu.ir.program import ArgumentView, Program, Switches, ValueRef, joint_graph
from tmmu.kernel_switches import current_switches
from tmmu.runtime.execute.step_memory import StepMemory
from tmmu.runtime.memory.allocated import require_allocated
from tmmu.torch_private import dispatch_mode_count, functorch_level, is_profiler_enabled, keeps_graph

MAX_STEPS: Final = 4
"""Steps of one program that may be under way at once inside plans; each takes memory of its own."""

MakeMemory = Callable[[], StepMemory]


class StepMemoryPool:
    """Step memories of one program; ``joint`` is its joint graph."""

    def __init__(self, program: Program) -> None:
        self.joint = joint_graph(program)
        self._values = program.graph.values
        self._memories: list[StepMemory] = []
        self._lock = Lock()

    @contextmanager
    def acquire_forward(self, args: Sequence[Any], make: MakeMemory) -> Iterator[StepMemory | None]:
        """An idle memory bound to these static arguments, or a new one; ``None`` where ``MAX_STEPS`` are taken."""
        with self._lock:
            # A busy or leased memory is kept until it is idle, even if it is bound to weights that were exchanged.
            self._memories = [memory for memory in self._memories if not memory.is_idle or memory.is_bound_to(args)]
            memory = next((memory for memory in self._memories if memory.is_idle), None)
            if memory is None and len(self._memories) < MAX_STEPS:
                memory = make()
                self._memories.append(memory)
            _mark_busy(memory)
        with _released_afterwards(memory):
            yield memory

    @contextmanager
    def acquire_backward(self, args: Sequence[Any], *, retain: bool) -> Iterator[tuple[StepMemory | None, bool]]:
        """The memory that holds the residuals among these arguments; else an idle one, and true: they must be loaded.

        With ``retain`` another backward pass will read them, so the memory that holds them is not used.
        """
        with self._lock:
            # Weights may have been freed, and filled again elsewhere, since the forward half.
            usable = [memory for memory in self._memories if not memory.is_busy and memory.can_load(args)]
            holders = [memory for memory in usable if memory.holds_residuals(args)]
            idle = [memory for memory in usable if memory.is_idle]
            memory = next(iter([] if retain else holders), None) or next(iter(idle), None)
            _mark_busy(memory)
        with _released_afterwards(memory):
            yield memory, memory not in holders

    def accepts(self, args: Sequence[Any]) -> bool:
        """Whether these are arguments of the backward half, by shape, dtype and number."""
        return len(args) == len(self.joint.residuals) and all(map(self._matches, args, self.joint.residuals))

    def _matches(self, arg: Any, index: int) -> bool:
        output = self.joint.forward.outputs[index] if index >= 0 else None
        values = self._values
        if isinstance(output, ValueRef):
            return tuple(arg.shape) == values.shape[output.value] and str(arg.dtype)[6:] == values.dtype[output.value]
        if isinstance(output, ArgumentView):
            return tuple(arg.shape) == output.shape
        return index < 0 or bool(arg == output)

    @property
    def stack_bytes(self) -> tuple[int, ...]:
        """Bytes that each memory takes now."""
        return tuple(memory.stack_bytes for memory in self._memories)


def _mark_busy(memory: StepMemory | None) -> None:
    if memory is not None:
        memory.is_busy = True


@contextmanager
def _released_afterwards(memory: StepMemory | None) -> Iterator[None]:
    try:
        yield
    finally:
        if memory is not None:
            memory.is_busy = False


def argument_signature(args: Sequence[Any], static: frozenset[int] = frozenset()) -> tuple[Any, ...]:
    """Shape, strides and dtype of each argument that is not static; a number as it is."""
    return tuple(
        (tuple(arg.shape), arg.stride(), arg.dtype) if isinstance(arg, torch.Tensor) else arg
        for position, arg in enumerate(args)
        if position not in static
    )


def call_switches() -> Switches:
    """The kernel switches of the caller, which eager takes for each call."""
    return current_switches("cpu")


def why_unplannable(args: Sequence[Any]) -> str:
    """Why a call with these arguments cannot run in a plan now; empty where it can."""
    if dispatch_mode_count() or functorch_level() is not None:
        return "a mode or transform looks at each operator"
    for arg in args:
        kind = type(arg)
        if kind is not torch.Tensor and kind is not torch.nn.Parameter and kind not in (int, float, bool):
            return f"an argument is a {kind.__name__}"
    return ""


def why_unbindable(args: Sequence[Any]) -> str:
    """Why nothing can be traced and bound for these arguments now; empty where it can."""
    for arg in args:
        if not isinstance(arg, torch.Tensor):
            continue
        if arg.device.type != "cpu":
            return f"an argument is on {arg.device}"
        if arg.layout is not torch.strided or arg.is_conj() or arg.is_neg():
            return "an argument is not a plain dense tensor"
    return "a profiler is running" if is_profiler_enabled() else ""


def require_storages(args: Sequence[Any]) -> None:
    """``INVALID_CONFIG`` for a plain tensor whose storage has not all of its bytes: torch would read on, or crash."""
    if dispatch_mode_count() or functorch_level() is not None:
        return
    for position, arg in enumerate(args):
        if type(arg) in (torch.Tensor, torch.nn.Parameter) and arg.layout is torch.strided:
            require_allocated(arg, f"argument {position} of a compiled graph")


def retains_graph() -> bool:
    """Whether the backward pass that is running was asked to retain its graph, for another pass over it."""
    return keeps_graph()
