"""The planned executor of a step with values on the host: its copies go beside the ops, on streams of their own.

Without it, as ``bind`` binds such a plan, each copy is an op like any other, and the others wait for it.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch

from tmmu.errors import InvalidConfig, UnsupportedOp
from tmmu.ir.graph import ACTIVATION, GRADIENT, HOST, SCRATCH, Graph
from tmmu.ir.ids import BufferId, OpId, ValueId
from tmmu.ir.windows import windows
from tmmu.runtime.device.interface import Access, ByteRange, Task
from tmmu.runtime.device.memory import MemoryDevice
from tmmu.runtime.execute.bind import bind_program
from tmmu.runtime.execute.bind_request import BindRequest
from tmmu.runtime.execute.executor import BoundProgram, Executor
from tmmu.runtime.memory.slab import Slab
from tmmu.runtime.offload.copies import RangeOf, host_copies
from tmmu.runtime.offload.fences import HostFenceFilter, all_fences
from tmmu.runtime.offload.loop import HostCopyLoop
from tmmu.runtime.steps.build import CompiledStep
from tmmu.runtime.steps.launch_plan import Hooks

ON_STACK: Final = frozenset({ACTIVATION, GRADIENT, SCRATCH})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copies:
    """The loop, its device, and the steps of copies, by position, as ops like any other."""

    loop: HostCopyLoop
    device: MemoryDevice
    steps: Mapping[int, CompiledStep]

    @property
    def hooks(self) -> Hooks:
        """What issues them."""
        return {position: partial(self.loop.before, position) for position in self.loop.positions}


class OffloadedExecutor(Executor):
    """An executor whose values go to the host and come back beside its ops. It closes its device."""

    def __init__(self, bound: BoundProgram, copies: _Copies, *, replay: bool) -> None:
        self._copies = copies
        without = {position: replace(step, code=(), fallback=()) for position, step in copies.steps.items()}
        super().__init__(_with_steps(bound, without), replay=replay, hooks=copies.hooks)

    @property
    def loop(self) -> HostCopyLoop:
        """What issues and counts the copies."""
        return self._copies.loop

    def attach(self, hooks: Hooks, *, replay: bool = True) -> None:
        """As of ``Executor``; while there are hooks, copies are ops: whoever looks between ops finds each one done."""
        with self._bound.segments.exclusive:
            steps = self._copies.steps
            if not hooks:
                steps = {position: replace(step, code=(), fallback=()) for position, step in steps.items()}
            self._bound = _with_steps(self._bound, steps)
        super().attach(hooks or self._copies.hooks, replay=replay)

    def launches_of(self, first: int, last: int) -> Any:
        """``UNSUPPORTED_OP``: copies go on beside a whole run."""
        del first, last
        raise UnsupportedOp("values on the host are there for a whole run", fix="bind a plan without host copies")

    def close(self) -> None:
        """Waits for the copies, and frees segments and streams."""
        is_open = self._lifetime.open
        super().close()
        if is_open:
            self.loop.close()
            self._copies.device.close()


def has_host_copies(graph: Graph) -> bool:
    """Whether values of a graph go to the host."""
    return HOST in graph.buffers.role


def bind_offloaded(
    request: BindRequest, device: MemoryDevice, *, fence_filter: HostFenceFilter = all_fences
) -> OffloadedExecutor:
    """An executor of a plan with values on the host, whose copies ``device`` makes. Errors as of ``bind``.

    Where the device has observers, each op is declared to them with the bytes that it reads and writes.
    """
    graph, order = request.program.graph, request.plan.order
    if not has_host_copies(graph):
        raise InvalidConfig("no value of the plan goes to the host", fix="bind it as any other plan")
    with torch.inference_mode(mode=False):
        bound = bind_program(replace(request, device=device.device))
        range_of = _ranges(bound, device)
        copies = host_copies(graph, order, range_of)
        ops = _declared(graph, order, range_of, {copy.op for copy in copies}) if device.has_observers else None
        loop = HostCopyLoop(device, copies, len(order), ops=ops, fence_filter=fence_filter)
    steps = {copy.op: bound.steps[copy.op] for copy in copies}
    return OffloadedExecutor(bound, _Copies(loop=loop, device=device, steps=steps), replay=request.replay)


def _with_steps(bound: BoundProgram, exchanged: Mapping[int, CompiledStep]) -> BoundProgram:
    return replace(bound, steps=tuple(exchanged.get(position, step) for position, step in enumerate(bound.steps)))


def _ranges(bound: BoundProgram, device: MemoryDevice) -> RangeOf:
    """Where bytes of buffers lie, in arenas of the device that are the slabs there are."""
    arenas: dict[int, int] = {}

    def range_of(buffer: int, low: int, high: int) -> ByteRange:
        slab, offset = bound.views.locations[buffer]
        arena = _arena_of(slab, device, arenas)
        return ByteRange(arena, offset + low, offset + high)

    return range_of


def _arena_of(slab: Slab, device: MemoryDevice, arenas: dict[int, int]) -> int:
    if id(slab) not in arenas:
        arenas[id(slab)] = device.adopt(slab).number
    return arenas[id(slab)]


def _declared(graph: Graph, order: Sequence[OpId], range_of: RangeOf, copied: Container[int]) -> dict[int, Task]:
    """By position, the op as a task that runs elsewhere. Of weights, state and inputs no copy touches a byte."""

    def accesses(values: Iterable[ValueId]) -> tuple[Access, ...]:
        return tuple(Access(range_of(buffer, low, high), buffer) for buffer, low, high in stack_spans(graph, values))

    rows = [(position, op) for position, op in enumerate(order) if position not in copied]
    return {
        position: Task(name=f"op {op}", reads=accesses(graph.ops.reads[op]), writes=accesses(graph.ops.writes[op]))
        for position, op in rows
    }


def stack_spans(graph: Graph, values: Iterable[ValueId]) -> Iterator[tuple[BufferId, int, int]]:
    """(buffer, low, high) of the bytes that values have on the stack, windows that meet as one."""
    spans, buffer_of = windows(graph), graph.values.buffer
    joined: list[tuple[BufferId, int, int]] = []
    for buffer, low, high in sorted((buffer_of[value], *spans[value]) for value in values):
        if graph.buffers.role[buffer] not in ON_STACK:
            continue
        if joined and joined[-1][0] == buffer and low <= joined[-1][2]:
            joined[-1] = (buffer, joined[-1][1], max(high, joined[-1][2]))
        else:
            joined.append((buffer, low, high))
    return iter(joined)
