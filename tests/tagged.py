"""Plans executed in memory whose bytes say who wrote them: what the judge must refuse, found without the judge.

Each byte of a slab is an ``int64`` tag of the op, the buffer and the place in it that was written last. An op's reads
are compared with those of a run in program order, in which every buffer has memory of its own. A kernel may write
before it has read: bytes of results that are no argument's, and do not take one over exactly, are spoiled first.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tmmu.ir.graph import DTYPE_BYTES, PERSISTENT_ROLES, Graph
from tmmu.ir.plan import Plan

Tags: TypeAlias = npt.NDArray[np.int64]
SPOILED = np.int64(-1)
EMPTY = np.int64(-2)
PLACES = 1 << 20
"""More than any buffer has bytes."""
SLAB_MAX = 1 << 24
"""Bytes of a slab; a plan that needs more is not one of these graphs'."""


def byte_places(graph: Graph, value: int) -> npt.NDArray[np.intp]:
    """The bytes of its buffer that a value's elements cover, in order of the elements."""
    values = graph.values
    width = DTYPE_BYTES[values.dtype[value]]
    places = np.zeros((), dtype=np.intp)
    for n, step in zip(values.shape[value], values.stride[value], strict=True):
        places = places[..., None] + np.arange(n, dtype=np.intp) * (step * width)
    return (places[..., None] + np.arange(width, dtype=np.intp)).reshape(-1) + values.offset[value]


class ProgramRun:
    """What each op of ``order`` reads when they run in program order, and what every buffer holds afterwards."""

    def __init__(self, graph: Graph, order: Sequence[int]) -> None:
        self.graph = graph
        self.places = [byte_places(graph, value) for value in range(len(graph.values))]
        self.buffers = [first_tags(graph, buffer) for buffer in range(len(graph.buffers))]
        self.reads: dict[int, list[Tags]] = {}
        self.contents: dict[int, Tags] = {}
        buffer = graph.values.buffer
        for op in sorted(set(order)):
            self.reads[op] = [self.buffers[buffer[value]][self.places[value]] for value in graph.ops.reads[op]]
            for value in graph.ops.writes[op]:
                self.buffers[buffer[value]][self.places[value]] = tags_of(op, buffer[value], self.places[value])
            for value in graph.ops.writes[op]:
                self.contents[value] = self.buffers[buffer[value]][self.places[value]]


def first_tags(graph: Graph, buffer: int) -> Tags:
    """What a buffer holds at first: itself, where it is there from the start."""
    size, is_there = graph.buffers.bytes[buffer], graph.buffers.role[buffer] in (*PERSISTENT_ROLES, "input")
    start = len(graph.ops) * len(graph.buffers)
    return (start + buffer) * PLACES + np.arange(size, dtype=np.int64) if is_there else np.full(size, EMPTY)


def tags_of(op: int, buffer: int, places: npt.NDArray[np.intp]) -> Tags:
    return (np.int64(op) * 4096 + buffer) * PLACES * 4096 + places


class TaggedRun:
    """A plan's own run: ``fault`` is the first thing that is read other than the program says, or ``""``."""

    def __init__(self, graph: Graph, plan: Plan) -> None:
        self.graph, self.plan = graph, plan
        self.program = ProgramRun(graph, plan.order)
        rows = plan.buffers
        joint = [layout == "joint" for layout in plan.arenas.layout]
        self.slab_of = {b: -1 if joint[a] else a for b, a in zip(rows.id, rows.arena, strict=True)}
        self.offset = dict(zip(rows.id, rows.offset, strict=True))
        self.takes_over = dict(zip(rows.id, rows.takes_over, strict=True))
        ends = dict.fromkeys(self.slab_of.values(), 0)
        for buffer, slab in self.slab_of.items():
            ends[slab] = max(ends[slab], self.offset[buffer] + graph.buffers.bytes[buffer])
        self.slabs = {slab: np.full(min(end, SLAB_MAX), EMPTY) for slab, end in ends.items()}
        self.callers = {buffer: first_tags(graph, buffer) for buffer in range(len(graph.buffers))}
        self.fault = "" if max(ends.values(), default=0) <= SLAB_MAX else "a slab beyond all bounds"
        self.fault = self.fault or self._run()

    def _run(self) -> str:
        for buffer, role in enumerate(self.graph.buffers.role):
            if role in PERSISTENT_ROLES and buffer in self.offset:
                memory, start = self._memory(buffer)
                memory[start : start + self.graph.buffers.bytes[buffer]] = first_tags(self.graph, buffer)
        for op in self.plan.order:
            fault = self._step(op)
            if fault:
                return fault
        return self._end()

    def _memory(self, buffer: int) -> tuple[Tags, int]:
        """The memory that a buffer lies in, and where; a caller's own for what the plan does not place."""
        if buffer not in self.offset:
            return self.callers[buffer], 0
        return self.slabs[self.slab_of[buffer]], self.offset[buffer]

    def _place(self, buffer: int) -> tuple[int, int]:
        return self.slab_of.get(buffer, -2), self.offset.get(buffer, 0)

    def _step(self, op: int) -> str:
        ops, buffer = self.graph.ops, self.graph.values.buffer
        read = {buffer[value] for value in ops.reads[op]}
        exact = {(buffer[new], buffer[old]) for new, old in ops.overwrites[op]}
        for value in ops.writes[op]:
            new = buffer[value]
            old = self.takes_over.get(new, new)
            is_exact = (new, old) in exact and self._place(old) == self._place(new)
            if new not in read and not is_exact:
                self._put(value, np.full(len(self.program.places[value]), SPOILED))
        for value, expected in zip(ops.reads[op], self.program.reads[op], strict=True):
            if not np.array_equal(self._get(value), expected):
                return f"op {op} reads value {value} of buffer {buffer[value]}"
        for value in ops.writes[op]:
            self._put(value, tags_of(op, buffer[value], self.program.places[value]))
        return ""

    def _get(self, value: int) -> Tags:
        memory, start = self._memory(self.graph.values.buffer[value])
        return memory[start + self.program.places[value]]

    def _put(self, value: int, tags: Tags) -> None:
        memory, start = self._memory(self.graph.values.buffer[value])
        memory[start + self.program.places[value]] = tags

    def _end(self) -> str:
        """Outputs, what a later step keeps, and, after the forward half, what the backward half needs."""
        graph, order = self.graph, set(self.plan.order)
        written = {value for op in order for value in graph.ops.writes[op]}
        again = {value for op in order if graph.ops.recompute[op] for value in graph.ops.writes[op]}
        kept = [value for value in graph.outputs if value in written]
        if self.plan.mode == "forward":
            saved = [value for op in self.plan.order for value in graph.ops.saves[op] if value in written]
            is_remat = self.plan.preset == "remat_enabled"
            kept += [value for value in saved if not (is_remat and value in again)]
        for value in kept:
            if not np.array_equal(self._get(value), self.program.contents[value]):
                return f"value {value} of buffer {graph.values.buffer[value]} is gone at the end"
        for buffer, role in enumerate(graph.buffers.role):
            if role in PERSISTENT_ROLES and buffer in self.offset:
                memory, start = self._memory(buffer)
                if not np.array_equal(
                    memory[start : start + graph.buffers.bytes[buffer]], self.program.buffers[buffer]
                ):
                    return f"buffer {buffer} is gone at the end"
        return ""
