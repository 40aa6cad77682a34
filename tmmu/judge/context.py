"""The context of one check: graph, plan, token, and what follows from them by definition, worked out once."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Final

from tmmu.ir.graph import ACTIVATION, CONSTANT, GRADIENT, PARAMETER, SCRATCH, STATE, Graph
from tmmu.ir.ids import BufferId
from tmmu.ir.plan import Plan, slabs_of
from tmmu.judge.packing import most_live
from tmmu.judge.spans import Spans, spans, takeover_objections

ARENAS: Final = (("parameters", "text"), ("state", "data"), ("activations", "stack"), ("gradients", "stack"))
"""(name, segment) of the arenas that every plan has, in this order."""
ARENA_OF_ROLE: Final = {PARAMETER: 0, CONSTANT: 0, STATE: 1, ACTIVATION: 2, SCRATCH: 2, GRADIENT: 3}
NEVER_REUSED: Final = (0, 1)
"""Indices of the arenas in which every buffer has a slot and bytes of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Rows of the plan with one slot and offset, each taking over the one before; the id is the first buffer's.

    ``[birth, death)`` in positions, ``bytes`` padded: both by definition.
    """

    id: BufferId
    rows: tuple[int, ...]
    birth: int
    death: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class CheckContext:
    """What every rule is given. All but ``graph``, ``plan`` and ``token`` needs a plan that passes the schema rules."""

    graph: Graph
    plan: Plan
    token: bytes | None

    @cached_property
    def spans(self) -> Spans:
        """Spans by definition, not as the plan has them."""
        return spans(self.graph, self.plan.order, self.plan.mode, self.plan.preset)

    @cached_property
    def row_of(self) -> dict[BufferId, int]:
        """The plan's row of each buffer that it places."""
        return {buffer: row for row, buffer in enumerate(self.plan.buffers.id)}

    @cached_property
    def padded_bytes(self) -> tuple[int, ...]:
        """Per row, the buffer's bytes rounded up to its arena's alignment."""
        rows, size = self.plan.buffers, self.graph.buffers.bytes
        step = [max(1, alignment) for alignment in self.plan.arenas.alignment]
        return tuple(-(-size[b] // step[a]) * step[a] for b, a in zip(rows.id, rows.arena, strict=True))

    @cached_property
    def slabs(self) -> tuple[tuple[int, ...], ...]:
        """The arenas, by index, of each slab."""
        return slabs_of(self.plan.arenas.segment, self.plan.arenas.layout)

    @cached_property
    def takeovers(self) -> tuple[tuple[int, str], ...]:
        """(row, objection) of each row that takes another over, by birth; no objection is the empty text."""
        rows = self.plan.buffers
        claims = [row for row, buffer in enumerate(rows.id) if rows.takes_over[row] != buffer]
        taken: set[BufferId] = set()
        verdicts = []
        for row in sorted(claims, key=lambda r: (self.spans.birth[rows.id[r]], r)):
            verdicts.append((row, self._objection(row, taken)))
            taken.add(rows.takes_over[row])
        return tuple(verdicts)

    def _objection(self, row: int, taken: set[BufferId]) -> str:
        plan, rows = self.plan, self.plan.buffers
        written, read = rows.id[row], rows.takes_over[row]
        t = self.spans.birth[written]
        if plan.preset == "train_full":
            return "the preset overwrites nothing"
        if read in taken:
            return f"buffer {read} is taken over already"
        if read not in self.row_of or not 0 <= t < len(plan.order):
            return "there is no such place or op"
        read_row = self.row_of[read]
        if rows.arena[row] != rows.arena[read_row]:
            return "their arenas differ"
        if rows.slot[row] != rows.slot[read_row] or rows.offset[row] != rows.offset[read_row]:
            return "their slots or offsets differ"
        return next(takeover_objections(self.graph, self.spans, plan.order[t], t, (written, read)), "")

    @cached_property
    def items(self) -> tuple[tuple[Item, ...], ...]:
        """Per arena, its items by id. A takeover with an objection joins no rows."""
        rows = self.plan.buffers
        chains = {row: [row] for row in range(len(rows))}
        first = list(range(len(rows)))
        # Takeovers come by birth, so the row that is taken over is in its chain already.
        for row, objection in self.takeovers:
            if not objection:
                first[row] = first[self.row_of[rows.takes_over[row]]]
                chains[first[row]] += chains.pop(row)
        by_arena: list[list[Item]] = [[] for _ in range(len(self.plan.arenas))]
        for root, members in chains.items():
            by_arena[rows.arena[root]].append(self._item(tuple(members)))
        return tuple(map(tuple, by_arena))

    def _item(self, rows: tuple[int, ...]) -> Item:
        ids = self.plan.buffers.id
        return Item(
            id=ids[rows[0]],
            rows=rows,
            birth=self.spans.birth[ids[rows[0]]],
            death=max(self.spans.death[ids[row]] for row in rows),
            bytes=max(self.padded_bytes[row] for row in rows),
        )

    def items_of(self, slab: Sequence[int]) -> tuple[Item, ...]:
        """The items of these arenas, arena by arena."""
        return tuple(chain.from_iterable(self.items[arena] for arena in slab))

    @cached_property
    def slot_bytes(self) -> dict[tuple[int, int], int]:
        """Per (arena, slot), the most padded bytes that a row in it has."""
        rows = self.plan.buffers
        largest: dict[tuple[int, int], int] = {}
        for arena, slot, size in zip(rows.arena, rows.slot, self.padded_bytes, strict=True):
            largest[arena, slot] = max(size, largest.get((arena, slot), 0))
        return largest

    def slot_sizes(self, arena: int) -> list[int]:
        """``slot_bytes`` of each slot of an arena, in order; 0 of an empty one."""
        return [self.slot_bytes.get((arena, slot), 0) for slot in range(self.plan.arenas.slots[arena])]

    @cached_property
    def slot_counts(self) -> tuple[int, ...]:
        """Per arena, the most items live at once; all of them where nothing is reused."""
        live = [most_live((item.birth, item.death, 1) for item in items) for items in self.items]
        return tuple(len(self.items[arena]) if arena in NEVER_REUSED else count for arena, count in enumerate(live))
