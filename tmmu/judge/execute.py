"""Runs a plan on paper: who owns which bytes after each op, and whether every read finds what the program means.

No liveness here. An op takes the bytes of its results from whoever had them; what was lost shows when it is read,
at the end at the latest. Which version of a buffer a value means comes from the graph alone, and which
bytes hold it from the plan alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tmmu.ir.fault import Fault
from tmmu.ir.graph import INPUT, PERSISTENT_ROLES, Graph
from tmmu.ir.plan import Plan, slabs_of
from tmmu.ir.windows import same_window, windows, writers
from tmmu.judge.interval import Owner, Ownership
from tmmu.judge.spans import mirrors, retained

START = -1
"""The op that put there what is there from the start."""


class Execution:
    """The state: per slab the owners of its bytes, per buffer the op that last changed it."""

    def __init__(self, graph: Graph, plan: Plan) -> None:
        self.graph, self.plan = graph, plan
        self.home, self.writer, self.window = graph.values.buffer, writers(graph), windows(graph)
        self.holds = [START] * len(graph.buffers)
        self.base = [-1] * len(graph.buffers)
        self.arena = [-1] * len(graph.buffers)
        self.over: dict[int, int] = {}
        for row, buffer in enumerate(plan.buffers.id):
            self.base[buffer], self.arena[buffer] = plan.buffers.offset[row], plan.buffers.arena[row]
            if plan.buffers.takes_over[row] != buffer:
                self.over[buffer] = plan.buffers.takes_over[row]
        slab_of = {a: slab[0] for slab in slabs_of(plan.arenas.segment, plan.arenas.layout) for a in slab}
        slabs = [Ownership() for _ in range(len(plan.arenas))]
        self.memory = [slabs[slab_of[arena]] for arena in range(len(plan.arenas))]
        self.lasting = sorted(
            (buffer for buffer in plan.buffers.id if graph.buffers.role[buffer] in PERSISTENT_ROLES),
            key=lambda buffer: (self.arena[buffer], self.base[buffer], buffer),
        )
        for buffer in self.lasting:
            low = self.base[buffer]
            self.memory[self.arena[buffer]].claim(low, low + graph.buffers.bytes[buffer], (buffer, START))

    def run(self) -> Iterator[Fault]:
        """Every fault of the execution and of what it leaves behind."""
        reads, writes = self.graph.ops.reads, self.graph.ops.writes
        for op in self.plan.order:
            for value in reads[op]:
                fault = self.look(value, "read", f"op {op} reads", op)
                if fault:
                    yield fault
            if writes[op]:
                yield from self.write(op)
        yield from self.end()

    def look(self, value: int, rule: str, who: str, op: int | None) -> Fault | None:
        """The fault of finding ``value`` now: another version, other bytes, or no place at all."""
        buffer, made = self.home[value], self.writer[value]
        base, (low, high) = self.base[buffer], self.window[value]
        if self.holds[buffer] == made:
            if low == high or (base < 0 and self.graph.buffers.role[buffer] == INPUT):
                return None
            if base >= 0 and self.memory[self.arena[buffer]].holds(base + low, base + high, (buffer, made)):
                return None
        seen = Fault(rule=rule, what=f"{who} value {value} of buffer {buffer}", op=op, value=value, buffer=buffer)
        return self.stale(seen, made) if self.holds[buffer] != made else self.lost(seen, (buffer, made))

    def stale(self, seen: Fault, made: int) -> Fault:
        """The program itself has moved on, or has not come so far."""
        now = self.holds[seen.buffer or 0]
        wanted = f"as op {made} writes it" if made >= 0 else "as it is at the start"
        found = f"op {now} wrote it last" if now >= 0 else "nothing has written it yet"
        return replace(seen, what=f"{seen.what} {wanted}, but {found}", by=now if now >= 0 else None)

    def lost(self, seen: Fault, wanted: Owner) -> Fault | None:
        """Bytes of the value belong to another by now, or it has no place; None if many pieces cover it."""
        base, (low, high) = self.base[wanted[0]], self.window[seen.value or 0]
        if base < 0:
            return replace(seen, what=f"{seen.what}, which has no place")
        name, memory = self.plan.arenas.name[self.arena[wanted[0]]], self.memory[self.arena[wanted[0]]]
        for begin, end, owner in memory.pieces(base + low, base + high):
            if owner != wanted:
                what = f"{seen.what}, but bytes {begin} to {end} of {name} hold {_holder(owner)}"
                by = owner[1] if owner and owner[1] >= 0 else None
                return replace(seen, what=what, arena=name, bytes=(begin, end), by=by)
        return None

    def write(self, op: int) -> Iterator[Fault]:
        """The results take their bytes; what the op still reads, or just wrote, they may not take."""
        read = {self.home[value] for value in self.graph.ops.reads[op]}
        for buffer, low, high in self.results(op):
            self.holds[buffer] = op
            base = self.base[buffer]
            if base >= 0:
                memory = self.memory[self.arena[buffer]]
                for begin, end, owner in memory.pieces(base + low, base + high):
                    if owner and owner[0] != buffer and (owner[1] == op or owner[0] in read):
                        yield from self.shared(op, buffer, owner, (begin, end))
                memory.claim(base + low, base + high, (buffer, op))
            elif self.graph.buffers.role[buffer] != INPUT:
                what = f"op {op} writes buffer {buffer}, which has no place"
                yield Fault(rule="write", what=what, op=op, buffer=buffer)

    def results(self, op: int) -> Sequence[tuple[int, int, int]]:
        """(buffer, low, high) of what ``op`` writes: per buffer, its windows joined where they meet."""
        written = self.graph.ops.writes[op]
        if len(written) == 1:
            return ((self.home[written[0]], *self.window[written[0]]),)
        joined: list[tuple[int, int, int]] = []
        for buffer, low, high in sorted((self.home[value], *self.window[value]) for value in written):
            if joined and joined[-1][0] == buffer and low <= joined[-1][2]:
                joined[-1] = (buffer, joined[-1][1], max(high, joined[-1][2]))
            else:
                joined.append((buffer, low, high))
        return joined

    def shared(self, op: int, buffer: int, owner: Owner, spot: tuple[int, int]) -> Iterator[Fault]:
        """The fault of writing ``buffer`` over bytes that ``op`` still reads or also writes, unless it may."""
        other, (low, high) = owner[0], spot
        twice = owner[1] == op
        if not twice and (self.may_overwrite(op, buffer, other) or not self.touches(op, other, spot)):
            return
        arena = self.plan.arenas.name[self.arena[buffer]]
        act = "also writes" if twice else "still reads"
        what = f"op {op} writes buffer {buffer} over bytes {low} to {high} of {arena}, which it {act} as buffer {other}"
        yield Fault(rule="write", what=what, op=op, buffer=buffer, arena=arena, bytes=spot, by=op)

    def touches(self, op: int, buffer: int, spot: tuple[int, int]) -> bool:
        """Whether ``op`` reads any of these bytes of the arena as part of ``buffer``."""
        base = self.base[buffer]
        seen = (self.window[value] for value in self.graph.ops.reads[op] if self.home[value] == buffer)
        return any(base + low < spot[1] and spot[0] < base + high for low, high in seen if low < high)

    def may_overwrite(self, op: int, buffer: int, other: int) -> bool:
        """Whether graph and plan both say that ``buffer`` is computed in the bytes of ``other``, exactly."""
        if self.over.get(buffer) != other or self.base[buffer] != self.base[other]:
            return False
        for written, read in self.graph.ops.overwrites[op]:
            if self.home[written] == buffer and self.home[read] == other:
                seen = (value for value in self.graph.ops.reads[op] if self.home[value] == other)
                return all(same_window(self.graph, value, read) for value in seen)
        return False

    def end(self) -> Iterator[Fault]:
        """Outputs, what is kept for the gradient, and all that persists are intact."""
        runs = set(self.plan.order)
        for value in self.graph.outputs:
            if self.writer[value] in runs or self.writer[value] == START:
                fault = self.look(value, "output", "at the end, the caller reads", None)
                if fault:
                    yield fault
        yield from self.gradients()
        for buffer in self.lasting:
            yield from self.intact(buffer)

    def gradients(self) -> Iterator[Fault]:
        """Each op's gradient, last op first, finds what that op saved. Nothing is written between."""
        plan, steps = self.plan, len(self.plan.order)
        mirrored = mirrors(self.graph, plan.mode)
        for t, value in reversed(retained(self.graph, plan.order, plan.mode, plan.preset)):
            op = plan.order[t]
            who = f"at {2 * steps - 1 - t}, the gradient of op {op} reads" if mirrored else f"at the end, op {op} keeps"
            if self.holds[self.home[value]] == self.writer[value]:
                fault = self.look(value, "saved", who, op)
                if fault:
                    yield fault

    def intact(self, buffer: int) -> Iterator[Fault]:
        """A persistent buffer still owns its bytes; which op of the program wrote which is the program's affair."""
        arena, low = self.arena[buffer], self.base[buffer]
        high = low + self.graph.buffers.bytes[buffer]
        if low == high or self.memory[arena].holds(low, high, (buffer, self.holds[buffer])):
            return
        for begin, end, owner in self.memory[arena].pieces(low, high):
            if owner is None or owner[0] != buffer:
                name, role = self.plan.arenas.name[arena], self.graph.buffers.role[buffer]
                what = f"at the end, bytes {begin} to {end} of {name}, {role} buffer {buffer}, hold {_holder(owner)}"
                by = owner[1] if owner and owner[1] >= 0 else None
                yield Fault(rule="persistent", what=what, buffer=buffer, arena=name, bytes=(begin, end), by=by)
                return


def _holder(owner: Owner | None) -> str:
    if owner is None:
        return "nothing"
    return f"buffer {owner[0]} " + (f"as op {owner[1]} wrote it" if owner[1] >= 0 else "from the start")


def execution(graph: Graph, plan: Plan) -> Iterator[Fault]:
    """Every fault that running ``plan`` on paper shows. Linear in reads and writes, but for logarithms."""
    return Execution(graph, plan).run()
