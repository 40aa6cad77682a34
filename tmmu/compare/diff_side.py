"""One planned graph, with what a comparison looks up in it: who holds what when, and where that comes from."""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from tmmu.compare.align import Pair
from tmmu.compare.match import Planned
from tmmu.compare.timeline import holders, levels, places
from tmmu.ir.graph import PERSISTENT_ROLES

CALLER: Final = "the caller"
GRADIENT: Final = "its gradient"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A buffer, and where in the model it comes from. ``until``: who needs it last, by source or one of the above."""

    id: int
    bytes: int
    arena: str
    role: str
    name: str
    op: str
    module: str
    source: str
    until: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A position of one plan: which op runs, and what the stack holds there."""

    position: int
    op: str
    module: str
    source: str
    bytes: int


class Side:
    """One planned graph with what is looked up in it again and again."""

    def __init__(self, planned: Planned) -> None:
        self.graph, self.plan = planned.graph, planned.plan
        rows = self.plan.buffers
        self.row = {buffer: row for row, buffer in enumerate(rows.id)}
        self.steps = len(self.plan.order)
        segment = self.plan.arenas.segment
        stack = {arena for arena in range(len(segment)) if segment[arena] == "stack"}
        self.stack = tuple(places(self.plan, stack))
        self.levels = levels(self.stack)
        self.outputs = {self.graph.values.buffer[value] for value in self.graph.outputs}

    def span(self, buffer: int) -> Pair:
        """Birth and death of a placed buffer."""
        row = self.row[buffer]
        return self.plan.buffers.birth[row], self.plan.buffers.death[row]

    def bytes(self, buffer: int) -> int:
        """Padded bytes of a placed buffer."""
        return self.plan.buffers.bytes[self.row[buffer]]

    def persists(self, buffer: int) -> bool:
        """Whether it is there before the first op."""
        return self.graph.buffers.role[buffer] in PERSISTENT_ROLES

    def held(self, position: int) -> Mapping[int, int]:
        """Who holds which bytes of the stack there."""
        return holders(self.plan, self.stack, position)

    def fullest_within(self, low: int, high: int) -> int:
        """The first of the positions ``low..high`` at which the stack holds most."""
        first = max(0, bisect_right(self.levels, (low, 2**64)) - 1)
        best, most = low, -1
        for position, level in self.levels[first:]:
            if position > high:
                break
            if level > most:
                best, most = max(position, low), level
        return best

    def moment(self, position: int) -> Moment:
        """The op that runs there, and the bytes held."""
        size = sum(self.held(position).values())
        if position >= self.steps:
            return Moment(position=position, op="", module="", source="", bytes=size)
        op, notes = self.plan.order[position], self.graph.notes.ops
        return Moment(
            position=position,
            op=self.graph.ops.target[op],
            module=notes.module[op],
            source=notes.source[op],
            bytes=size,
        )

    def origin(self, buffer: int) -> Origin:
        """The buffer with its maker, and who needs it last."""
        made = Moment(position=0, op="", module="", source="", bytes=0)
        if not self.persists(buffer):
            op, notes = self.plan.order[self.span(buffer)[0]], self.graph.notes.ops
            made = replace(made, op=self.graph.ops.target[op], module=notes.module[op], source=notes.source[op])
        return Origin(
            id=buffer,
            bytes=self.bytes(buffer),
            arena=self.plan.arenas.name[self.plan.buffers.arena[self.row[buffer]]],
            role=self.graph.buffers.role[buffer],
            name=self.graph.notes.buffers[buffer],
            op=made.op,
            module=made.module,
            source=made.source,
            until=self._until(buffer),
        )

    def _until(self, buffer: int) -> str:
        """The source of the op that touches the buffer last, or who needs it after the last op."""
        death, home, ops = self.span(buffer)[1], self.graph.values.buffer, self.graph.ops
        if self.persists(buffer):
            return ""
        if death >= self.steps and buffer in self.outputs:
            return CALLER
        op = self.plan.order[death - 1] if death <= self.steps else -1
        touched = op >= 0 and any(home[value] == buffer for value in (*ops.reads[op], *ops.writes[op]))
        return self.graph.notes.ops.source[op] or ops.target[op] if touched else GRADIENT
