"""A run in pieces: an executor's program up to a position, and on from there later, with other runs between.

A paused run keeps its inputs, and *parks* its live bytes in the stack: they stay where they are until somebody else is
to get a slab over them, and only then go to the host, a buffer at a time; they come back when the run goes on. Code and
memory are the executor's own, so pieces one after another have the bits of a whole run. Invariants: what crosses a cut
lies in live buffers of the stack, in inputs, weights and state, and nowhere else, since a step of the code is whole on
one side of it; state is the caller's, who passes it again and lets nobody write it meanwhile.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise

import torch

from tmmu.errors import InvalidConfig, UnsupportedOp
from tmmu.ir.graph import PERSISTENT_ROLES, Graph
from tmmu.ir.plan import Plan
from tmmu.runtime.execute.executor import Executor, run_launches
from tmmu.runtime.memory.slab import Slab, host_copy, is_dense
from tmmu.runtime.steps.launch_plan import Launch
from tmmu.torch_private import DisableAutocast


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferWindow:
    """A strided window on a buffer: ``offset`` in bytes, ``shape`` and ``stride`` in elements of ``dtype``."""

    buffer: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str


class PieceRunner:
    """Starts runs of an executor that pause between two ops.

    Its *pieces* lie between positions at which a run has paused so far. A piece is captured when it is first run, and
    again in two parts when a run pauses inside it; so a cut costs what capturing these ops costs, once, and each run
    over it one more launch.
    """

    def __init__(self, executor: Executor) -> None:
        bound = executor.bound
        if bound.written_inputs or bound.variants:
            raise UnsupportedOp(
                "a program that changes its inputs, or takes other numbers in each run, runs as a whole",
                fix="run it without a pause",
            )
        self.executor = executor
        self._cuts = [0, len(executor.order)]
        self._launches: dict[tuple[int, int], tuple[Launch, ...]] = {}
        self._versions_at: dict[int, Mapping[int, int]] = {}
        self._ranges_at: dict[int, Mapping[int, tuple[int, int]]] = {}

    def start(
        self, inputs: Mapping[str, torch.Tensor], until: int, *, state: Sequence[torch.Tensor] = ()
    ) -> "PausedRun":
        """A run of the first ``until`` ops of the order. Errors as of ``Executor.run``; then nothing is paused."""
        tensors = self.executor.require_runnable(inputs, state)
        run = PausedRun(self, [tensor.clone() for tensor in tensors])
        run.advance(until, state=state)
        return run

    def launches(self, first: int, last: int) -> list[Launch]:
        """Launches of the steps ``[first, last)``; whoever has exclusive access to the segments asks."""
        self._cut(first)
        self._cut(last)
        launches: list[Launch] = []
        for piece in pairwise(cut for cut in self._cuts if first <= cut <= last):
            if piece not in self._launches:
                self._launches[piece] = self.executor.launches_of(*piece)
            launches += self._launches[piece]
        return launches

    @property
    def piece_count(self) -> int:
        """Pieces that are captured."""
        return len(self._launches)

    def _cut(self, position: int) -> None:
        """Has a piece end there."""
        index = bisect_left(self._cuts, position)
        if self._cuts[index] != position:
            self._launches.pop((self._cuts[index - 1], self._cuts[index]), None)
            self._cuts.insert(index, position)

    def versions_at(self, position: int) -> Mapping[int, int]:
        """By buffer that is live in the stack once ``position`` ops have run, the position of its last write."""
        if position not in self._versions_at:
            bound = self.executor.bound
            self._versions_at[position] = live_versions(bound.graph, bound.plan, position)
        return self._versions_at[position]

    def stack_ranges(self, position: int) -> Mapping[int, tuple[int, int]]:
        """By buffer of the stack that is live there, its bytes ``[low, high)`` in that segment."""
        if position not in self._ranges_at:
            bound = self.executor.bound
            stack, sizes = bound.segments.slabs["stack"], bound.graph.buffers.bytes
            places = {b: bound.views.locations[b] for b in live_buffers(bound.graph, bound.plan, position) if sizes[b]}
            self._ranges_at[position] = {
                buffer: (offset, offset + sizes[buffer]) for buffer, (slab, offset) in places.items() if slab is stack
            }
        return self._ranges_at[position]


class PausedRun:
    """A run that waits behind op ``position`` of the order. Made by ``PieceRunner.start``."""

    def __init__(self, pieces: PieceRunner, inputs: Sequence[torch.Tensor]) -> None:
        self._pieces, self._inputs = pieces, inputs
        self._segments = pieces.executor.segments
        self._live: Mapping[int, tuple[int, int]] = {}
        self._saved: dict[int, torch.Tensor] = {}
        self.position = 0
        self.is_paused = True
        """False once it has gone to its end, failed or been discarded."""
        self.bytes_saved = self.bytes_restored = 0
        """Moved to the host so far, and back."""

    @property
    def live_bytes(self) -> int:
        """Bytes of the stack that the rest of the run may read."""
        return sum(high - low for low, high in self._live.values())

    @property
    def versions(self) -> Mapping[int, int]:
        """By buffer that can be read and written here, the position of the op that wrote it last."""
        return self._pieces.versions_at(self.position)

    def advance(self, until: int, *, state: Sequence[torch.Tensor] = ()) -> None:
        """Runs the ops up to ``until`` and pauses there. A run of which an op fails is over."""
        with self._segments.exclusive, ExitStack() as block:
            self._run(until, state, block)
            self._live = self._pieces.stack_ranges(until)
            self._segments.stack.park(self)

    def finish(self, *, state: Sequence[torch.Tensor] = ()) -> tuple[torch.Tensor, ...]:
        """Runs the rest; the outputs, each in memory of its own."""
        executor = self._pieces.executor
        with self._segments.exclusive, ExitStack() as block:
            self._run(len(executor.order), state, block)
            outputs = executor.results()
            self._end()
            return outputs

    def read(self, window: BufferWindow) -> torch.Tensor:
        """A copy of a window on a live buffer, on the executor's device."""
        with self._segments.exclusive:
            return self._tensor_of(window).to(self._segments.device, copy=True)

    def write(self, window: BufferWindow, tensor: torch.Tensor) -> None:
        """Copies a tensor to a window on a live buffer, for the ops to come; of its shape and dtype."""
        with self._segments.exclusive:
            target = self._tensor_of(window)
            if tensor.shape != target.shape or tensor.dtype != target.dtype:
                form, other = (f"{str(t.dtype)[6:]}{list(t.shape)}" for t in (target, tensor))
                raise InvalidConfig(f"the value is {form}, and the tensor {other}", fix=f"give {form}")
            if not is_dense(target):
                raise InvalidConfig("elements of the value share their bytes", fix="replace what it was made of")
            target.copy_(tensor.detach())

    def discard(self) -> None:
        """Gives up the run and what it keeps. Discarding again does nothing."""
        with self._segments.exclusive:
            self._end()

    def make_room(self, low: int, high: int) -> None:
        """Copies live buffers in the bytes ``[low, high)`` of the stack to the host, unless they are there."""
        leaving = [
            buffer
            for buffer, (first, last) in self._live.items()
            if first < high and low < last and buffer not in self._saved
        ]
        if not leaving:
            return
        executor = self._pieces.executor
        executor.bound.stream.synchronize()
        images = {buffer: host_copy(executor.bound.views.bytes(buffer)) for buffer in leaving}
        self._saved |= images
        self.bytes_saved += sum(image.nbytes for image in images.values())

    def _run(self, until: int, state: Sequence[torch.Tensor], block: ExitStack) -> None:
        """Has the ops up to ``until`` run; ``block`` ends when what they left has been looked at."""
        executor, stack = self._pieces.executor, self._segments.stack
        self._require_paused()
        if not self.position <= until <= len(executor.order):
            raise InvalidConfig(
                f"a run of {len(executor.order)} ops that is at {self.position} does not go on to {until}",
                fix="name a later position",
            )
        launches = self._pieces.launches(self.position, until)
        stack.unpark(self)
        try:
            block.enter_context(executor.stack_scope())
        except BaseException:
            stack.park(self)  # nobody has written over it
            raise
        block.enter_context(executor.bound.stream.activate())
        block.enter_context(DisableAutocast())
        try:
            self._restore()
            executor.fill_inputs(self._inputs)
            run_launches(executor.bound, launches, state)
            executor.note_run()
        except BaseException:
            self._end()
            raise
        self.position = until

    def _restore(self) -> None:
        views = self._pieces.executor.bound.views
        for buffer, image in self._saved.items():
            views.bytes(buffer).copy_(image)
            self.bytes_restored += image.nbytes
        self._drop_images()

    def _end(self) -> None:
        self.is_paused = False
        self._segments.stack.unpark(self)
        self._live = {}
        self._drop_images()

    def _drop_images(self) -> None:
        for image in self._saved.values():
            image.zero_()  # the host's allocator may give these bytes to anybody
        self._saved.clear()

    def _tensor_of(self, window: BufferWindow) -> torch.Tensor:
        """The tensor of a window: in the stack, or in what was saved of it."""
        self._require_paused()
        if window.buffer not in self.versions:
            raise InvalidConfig(
                f"buffer {window.buffer} is not live behind {self.position} ops",
                fix="name one of versions",
                buffer=window.buffer,
            )
        image = self._saved.get(window.buffer)
        slab, start = self._pieces.executor.bound.views.locations[window.buffer]
        if image is not None:
            slab, start = Slab.over(image), 0
        return slab.view(start + window.offset, window.shape, window.stride, getattr(torch, window.dtype))

    def _require_paused(self) -> None:
        if not self.is_paused:
            raise InvalidConfig("the run is not paused any more", fix="start another one")


def live_versions(graph: Graph, plan: Plan, position: int) -> dict[int, int]:
    """By buffer that is live behind ``position`` ops and does not persist, the position of its last write before."""
    last_write: dict[int, int] = {
        graph.values.buffer[value]: index
        for index, op in enumerate(plan.order[:position])
        for value in graph.ops.writes[op]
    }
    roles = graph.buffers.role
    live = live_buffers(graph, plan, position)
    return {buffer: last_write[buffer] for buffer in live if roles[buffer] not in PERSISTENT_ROLES}


def live_buffers(graph: Graph, plan: Plan, position: int) -> list[int]:
    """Placed buffers that were born before this position and are read or written from there on; outputs to the end."""
    rows, is_end = plan.buffers, position == len(plan.order)
    outputs = {graph.values.buffer[value] for value in graph.outputs} if is_end else set[int]()
    return [
        buffer
        for buffer, birth, death in zip(rows.id, rows.birth, rows.death, strict=True)
        if birth < position and (position < death or buffer in outputs)
    ]
