"""One side of a comparison: a planned graph, with its timeline of the stack and what is looked up in it."""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tmmu.compare.align import Pair
from tmmu.compare.match import PlannedGraph
from tmmu.compare.timeline import levels, live_buffers, placed_items
from tmmu.ir.graph import PERSISTENT_ROLES
from tmmu.ir.ids import BufferId

CALLER: Final = "the caller"
GRADIENT: Final = "its gradient"


# The field names of ``Origin`` and ``Moment`` are keys of tmmu diff --json.
@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A buffer, and the op that makes it. ``until``: its last user, by source, or ``CALLER`` or ``GRADIENT``."""

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
    """A position of one plan: which op runs, and the live bytes of the stack."""

    position: int
    op: str
    module: str
    source: str
    bytes: int


class DiffSide:
    """A planned graph with its lookups; built once per comparison."""

    def __init__(self, planned: PlannedGraph) -> None:
        self.graph, self.plan = planned.graph, planned.plan
        rows = self.plan.buffers
        self.row = {buffer: row for row, buffer in enumerate(rows.id)}
        self.steps = len(self.plan.order)
        segment = self.plan.arenas.segment
        stack = {arena for arena in range(len(segment)) if segment[arena] == "stack"}
        self.stack = tuple(placed_items(self.plan, stack))
        self.levels = levels(self.stack)
        self.outputs = {self.graph.values.buffer[value] for value in self.graph.outputs}

    def span(self, buffer: BufferId) -> Pair:
        """Birth and death of a placed buffer."""
        row = self.row[buffer]
        return self.plan.buffers.birth[row], self.plan.buffers.death[row]

    def bytes(self, buffer: BufferId) -> int:
        """Padded bytes of a placed buffer."""
        return self.plan.buffers.bytes[self.row[buffer]]

    def is_persistent(self, buffer: BufferId) -> bool:
        """Whether the buffer exists before the first op."""
        return self.graph.buffers.role[buffer] in PERSISTENT_ROLES

    def live_bytes(self, position: int) -> Mapping[BufferId, int]:
        """The bytes of the stack that each buffer holds at ``position``."""
        return live_buffers(self.plan, self.stack, position)

    def peak_within(self, low: int, high: int) -> int:
        """The first of the positions ``low..high``, both included, with the most live bytes."""
        first = max(0, bisect_right(self.levels, (low, 2**64)) - 1)
        best, most = low, -1
        for position, level in self.levels[first:]:
            if position > high:
                break
            if level > most:
                best, most = max(position, low), level
        return best

    def moment(self, position: int) -> Moment:
        """The op that runs at ``position``, none past the order, and the live bytes."""
        op, module, source = self._op_at(position)
        live = sum(self.live_bytes(position).values())
        return Moment(position=position, op=op, module=module, source=source, bytes=live)

    def origin(self, buffer: BufferId) -> Origin:
        """The buffer with the op that makes it, none for a persistent one, and its last user."""
        op, module, source = self._op_at(self.steps if self.is_persistent(buffer) else self.span(buffer)[0])
        return Origin(
            id=buffer,
            bytes=self.bytes(buffer),
            arena=self.plan.arenas.name[self.plan.buffers.arena[self.row[buffer]]],
            role=self.graph.buffers.role[buffer],
            name=self.graph.notes.buffers[buffer],
            op=op,
            module=module,
            source=source,
            until=self._last_user(buffer),
        )

    def _op_at(self, position: int) -> tuple[str, str, str]:
        """Operator, module and source of the op at ``position``; empty past the order."""
        if position >= self.steps:
            return "", "", ""
        op, notes = self.plan.order[position], self.graph.notes.ops
        return self.graph.ops.target[op], notes.module[op], notes.source[op]

    def _last_user(self, buffer: BufferId) -> str:
        """The source of the op that touches the buffer last, or who reads it after the last op."""
        death, buffer_of, ops = self.span(buffer)[1], self.graph.values.buffer, self.graph.ops
        if self.is_persistent(buffer):
            return ""
        if death >= self.steps and buffer in self.outputs:
            return CALLER
        op = self.plan.order[death - 1] if death <= self.steps else -1
        is_touched = op >= 0 and any(buffer_of[value] == buffer for value in (*ops.reads[op], *ops.writes[op]))
        return self.graph.notes.ops.source[op] or ops.target[op] if is_touched else GRADIENT
