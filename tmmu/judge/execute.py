"""Executes a plan abstractly: which buffer owns each byte, at which version, and whether every read finds its value.

It knows no liveness. Planners share bytes because their liveness says that they may, and a checker that reused it would
repeat its mistakes. As regalloc2's checker does for registers, this one follows what is where, op by op. Which version
of a buffer a value means comes from the graph alone, which bytes hold it from the plan alone.

State. Per slab, each byte is owned by (buffer, op that wrote it) or by nothing; per buffer, the op that wrote its
current version, ``START`` before any. An order is a straight line, so no two states are ever joined: the lattice is
flat, the state exact, and one transfer per op ends the run. Persistent buffers own their bytes at first.

A *read* of a value demands that its buffer is at the version of the op that writes the value, and that all bytes of its
window are owned by that buffer at that version.

A *write* makes the op the current version of the buffer, and hands all bytes of the window to it, whoever owned them.
Losing bytes is no fault by itself: what was lost and mattered is missed by a later read, or at the end, where outputs,
saved values and everything persistent are read. One thing a later read cannot see: a kernel may write before it has
read all. So an op may not take bytes that it reads as another buffer, nor bytes that it also writes as another one.

``takes_over`` is the one exception, and it is exact: the op lists the pair in ``overwrites`` (same dtype, shape and
stride, dense, each the whole of its buffer, by the rule of that name), the plan says that the buffer takes over the
other, both begin at one offset, and the op reads the other through windows equal to the pair's alone. Then element i of
the result lies on element i of the argument and on no other, and an elementwise kernel has read it when it writes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from tmmu.ir.fault import Fault
from tmmu.ir.graph import PERSISTENT_ROLES, UNPLACED_ROLES, Graph
from tmmu.ir.ids import BufferId, OpId, ValueId
from tmmu.ir.plan import Plan, slabs_of
from tmmu.ir.windows import same_window, windows, writers
from tmmu.judge.interval import Ownership
from tmmu.judge.spans import is_mirrored, saved_values

Owner: TypeAlias = tuple[BufferId, OpId]
"""(buffer, op that wrote its bytes)"""
START: Final = OpId(-1)
"""The writer of what is there from the start."""


class Execution:
    """The state, and the transfer of each op. ``offset_of`` and ``arena_of`` are -1 for buffers without a place."""

    def __init__(self, graph: Graph, plan: Plan) -> None:
        self.graph, self.plan = graph, plan
        self.buffer_of, self.writer_of, self.window_of = graph.values.buffer, writers(graph), windows(graph)
        self.version = [START] * len(graph.buffers)
        self.offset_of = [-1] * len(graph.buffers)
        self.arena_of = [-1] * len(graph.buffers)
        self.taken_over: dict[BufferId, BufferId] = {}
        for row, buffer in enumerate(plan.buffers.id):
            self.offset_of[buffer], self.arena_of[buffer] = plan.buffers.offset[row], plan.buffers.arena[row]
            if plan.buffers.takes_over[row] != buffer:
                self.taken_over[buffer] = plan.buffers.takes_over[row]
        slab_of = {a: slab[0] for slab in slabs_of(plan.arenas.segment, plan.arenas.layout) for a in slab}
        slabs = [Ownership[Owner]() for _ in range(len(plan.arenas))]
        self.memory = [slabs[slab_of[arena]] for arena in range(len(plan.arenas))]
        self.persistent = sorted(
            (buffer for buffer in plan.buffers.id if graph.buffers.role[buffer] in PERSISTENT_ROLES),
            key=lambda buffer: (self.arena_of[buffer], self.offset_of[buffer], buffer),
        )
        for buffer in self.persistent:
            low = self.offset_of[buffer]
            self.memory[self.arena_of[buffer]].claim(low, low + graph.buffers.bytes[buffer], (buffer, START))

    def run(self) -> Iterator[Fault]:
        """Every fault of the execution and of the state that it ends in."""
        reads, writes = self.graph.ops.reads, self.graph.ops.writes
        for op in self.plan.order:
            for value in reads[op]:
                fault = self.read(value, "read", f"op {op} reads", op)
                if fault:
                    yield fault
            if writes[op]:
                yield from self.write(op)
        yield from self.end_faults()

    def read(self, value: ValueId, rule: str, reader: str, op: OpId | None) -> Fault | None:
        """The fault of reading ``value`` now: another version, bytes of another owner, or no place at all."""
        buffer, writer = self.buffer_of[value], self.writer_of[value]
        offset, (low, high) = self.offset_of[buffer], self.window_of[value]
        if self.version[buffer] == writer:
            # Inputs are the caller's, and host buffers have bytes of their own: their version is all there is to check.
            if low == high or (offset < 0 and self.graph.buffers.role[buffer] in UNPLACED_ROLES):
                return None
            memory = self.memory[self.arena_of[buffer]]
            if offset >= 0 and memory.is_owned_by(offset + low, offset + high, (buffer, writer)):
                return None
        fault = Fault(rule=rule, what=f"{reader} value {value} of buffer {buffer}", op=op, value=value, buffer=buffer)
        if self.version[buffer] != writer:
            return self.stale_fault(fault, buffer, writer)
        return self.clobbered_fault(fault, value)

    def stale_fault(self, fault: Fault, buffer: BufferId, writer: OpId) -> Fault:
        """The buffer is at a later version than ``writer``'s, or not there yet."""
        current = self.version[buffer]
        expected = f"as op {writer} writes it" if writer >= 0 else "as it is at the start"
        actual = f"op {current} wrote it last" if current >= 0 else "nothing has written it yet"
        return replace(fault, what=f"{fault.what} {expected}, but {actual}", by=current if current >= 0 else None)

    def clobbered_fault(self, fault: Fault, value: ValueId) -> Fault | None:
        """Bytes of the value have another owner, or it has no place; ``None`` where several ranges cover it."""
        buffer = self.buffer_of[value]
        offset, (low, high) = self.offset_of[buffer], self.window_of[value]
        if offset < 0:
            return replace(fault, what=f"{fault.what}, which has no place")
        name, memory = self.plan.arenas.name[self.arena_of[buffer]], self.memory[self.arena_of[buffer]]
        for begin, end, owner in memory.pieces(offset + low, offset + high):
            if owner != (buffer, self.writer_of[value]):
                message = f"{fault.what}, but bytes {begin} to {end} of {name} hold {_describe(owner)}"
                return replace(fault, what=message, arena=name, bytes=(begin, end), by=_clobberer(owner))
        return None

    def write(self, op: OpId) -> Iterator[Fault]:
        """The results take their bytes. Faults: bytes that the op reads or writes as another buffer; no place."""
        read = {self.buffer_of[value] for value in self.graph.ops.reads[op]}
        for buffer, low, high in self.written_ranges(op):
            self.version[buffer] = op
            offset = self.offset_of[buffer]
            if offset >= 0:
                memory = self.memory[self.arena_of[buffer]]
                for begin, end, owner in memory.pieces(offset + low, offset + high):
                    if owner and owner[0] != buffer and (owner[1] == op or owner[0] in read):
                        yield from self.conflict_faults(op, buffer, owner, (begin, end))
                memory.claim(offset + low, offset + high, (buffer, op))
            elif self.graph.buffers.role[buffer] not in UNPLACED_ROLES:
                message = f"op {op} writes buffer {buffer}, which has no place"
                yield Fault(rule="write", what=message, op=op, buffer=buffer)

    def written_ranges(self, op: OpId) -> Sequence[tuple[BufferId, int, int]]:
        """(buffer, low, high) of what ``op`` writes: per buffer, its windows joined where they meet."""
        written = self.graph.ops.writes[op]
        if len(written) == 1:
            return ((self.buffer_of[written[0]], *self.window_of[written[0]]),)
        joined: list[tuple[BufferId, int, int]] = []
        for buffer, low, high in sorted((self.buffer_of[value], *self.window_of[value]) for value in written):
            if joined and joined[-1][0] == buffer and low <= joined[-1][2]:
                joined[-1] = (buffer, joined[-1][1], max(high, joined[-1][2]))
            else:
                joined.append((buffer, low, high))
        return joined

    def conflict_faults(self, op: OpId, buffer: BufferId, owner: Owner, taken: tuple[int, int]) -> Iterator[Fault]:
        """The fault of taking bytes of ``owner``, which ``op`` also writes or still reads; none where it may."""
        victim, (low, high) = owner[0], taken
        still_reads = owner[1] != op
        if still_reads and (self.may_overwrite(op, buffer, victim) or not self.reads_bytes(op, victim, taken)):
            return
        arena = self.plan.arenas.name[self.arena_of[buffer]]
        act = f"it {'still reads' if still_reads else 'also writes'} as buffer {victim}"
        message = f"op {op} writes buffer {buffer} over bytes {low} to {high} of {arena}, which {act}"
        yield Fault(rule="write", what=message, op=op, buffer=buffer, arena=arena, bytes=taken, by=op)

    def reads_bytes(self, op: OpId, buffer: BufferId, span: tuple[int, int]) -> bool:
        """Whether ``op`` reads any of these bytes of the slab as part of ``buffer``."""
        offset = self.offset_of[buffer]
        read = (self.window_of[value] for value in self.graph.ops.reads[op] if self.buffer_of[value] == buffer)
        return any(offset + low < span[1] and span[0] < offset + high for low, high in read if low < high)

    def may_overwrite(self, op: OpId, buffer: BufferId, argument: BufferId) -> bool:
        """Whether graph and plan both say that ``buffer`` is computed in the bytes of ``argument``, exactly."""
        if self.taken_over.get(buffer) != argument or self.offset_of[buffer] != self.offset_of[argument]:
            return False
        for written, read in self.graph.ops.overwrites[op]:
            if self.buffer_of[written] == buffer and self.buffer_of[read] == argument:
                values = (value for value in self.graph.ops.reads[op] if self.buffer_of[value] == argument)
                return all(same_window(self.graph, value, read) for value in values)
        return False

    def end_faults(self) -> Iterator[Fault]:
        """Outputs, saved values and persistent buffers are intact after the last op."""
        runs = set(self.plan.order)
        for value in self.graph.outputs:
            if self.writer_of[value] in runs or self.writer_of[value] == START:
                fault = self.read(value, "output", "at the end, the caller reads", None)
                if fault:
                    yield fault
        yield from self.saved_faults()
        for buffer in self.persistent:
            yield from self.persistent_faults(buffer)

    def saved_faults(self) -> Iterator[Fault]:
        """Each op's gradient, last op first, finds what that op saved; nothing is written in between."""
        order, mode = self.plan.order, self.plan.mode
        mirrored = is_mirrored(self.graph, mode)
        for t, value in reversed(saved_values(self.graph, order, mode, self.plan.preset)):
            op, gradient_time = order[t], 2 * len(order) - 1 - t
            reader = f"at {gradient_time}, the gradient of op {op} reads" if mirrored else f"at the end, op {op} keeps"
            # A saved value that the program itself has replaced since is no longer owed to anyone.
            if self.version[self.buffer_of[value]] == self.writer_of[value]:
                fault = self.read(value, "saved", reader, op)
                if fault:
                    yield fault

    def persistent_faults(self, buffer: BufferId) -> Iterator[Fault]:
        """A persistent buffer still owns its bytes, at whatever versions: partial writes leave several."""
        arena, low = self.arena_of[buffer], self.offset_of[buffer]
        high = low + self.graph.buffers.bytes[buffer]
        if low == high or self.memory[arena].is_owned_by(low, high, (buffer, self.version[buffer])):
            return
        for begin, end, owner in self.memory[arena].pieces(low, high):
            if owner is None or owner[0] != buffer:
                name, role = self.plan.arenas.name[arena], self.graph.buffers.role[buffer]
                location, by = f"bytes {begin} to {end} of {name}", _clobberer(owner)
                message = f"at the end, {location}, {role} buffer {buffer}, hold {_describe(owner)}"
                yield Fault(rule="persistent", what=message, buffer=buffer, arena=name, bytes=(begin, end), by=by)
                return


def _clobberer(owner: Owner | None) -> int | None:
    """The op that put the owner's bytes there, if an op did."""
    return owner[1] if owner and owner[1] != START else None


def _describe(owner: Owner | None) -> str:
    if owner is None:
        return "nothing"
    return f"buffer {owner[0]} " + (f"as op {owner[1]} wrote it" if owner[1] != START else "from the start")


def execution_faults(graph: Graph, plan: Plan) -> Iterator[Fault]:
    """Every fault that executing ``plan`` shows. Linear in reads and writes, but for logarithms."""
    return Execution(graph, plan).run()
