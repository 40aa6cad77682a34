"""What the judge has before it: graph, plan, token, and what follows from them by definition."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import Final

from tmmu.ir.graph import ACTIVATION, CONSTANT, GRADIENT, PARAMETER, SCRATCH, STATE, Graph
from tmmu.ir.plan import Plan, slabs_of
from tmmu.judge.spans import Spans, objections, spans

ARENAS: Final = (("parameters", "text"), ("state", "data"), ("activations", "stack"), ("gradients", "stack"))
"""Every plan has these, with these segments, in this order."""
ARENA_OF_ROLE: Final = {PARAMETER: 0, CONSTANT: 0, STATE: 1, ACTIVATION: 2, SCRATCH: 2, GRADIENT: 3}
NEVER_REUSED: Final = (0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Rows of the plan that share one place, each taking over the one before; the id is the first buffer's."""

    id: int
    rows: tuple[int, ...]
    birth: int
    death: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Case:
    """One judgement. Needs columns and ids that are in order; everything else it works out itself."""

    graph: Graph
    plan: Plan
    token: bytes | None

    @cached_property
    def spans(self) -> Spans:
        """Spans by definition, not as the plan has them."""
        return spans(self.graph, self.plan.order, self.plan.mode, self.plan.preset)

    @cached_property
    def row_of(self) -> dict[int, int]:
        """The plan's row of each buffer that it places."""
        return {buffer: row for row, buffer in enumerate(self.plan.buffers.id)}

    @cached_property
    def padded(self) -> tuple[int, ...]:
        """Per row, the buffer's bytes rounded up to its arena's alignment, by definition."""
        rows, size = self.plan.buffers, self.graph.buffers.bytes
        step = [max(1, alignment) for alignment in self.plan.arenas.alignment]
        return tuple(-(-size[b] // step[a]) * step[a] for b, a in zip(rows.id, rows.arena, strict=True))

    @cached_property
    def slabs(self) -> tuple[tuple[int, ...], ...]:
        """The arenas, by index, of each range of bytes."""
        return slabs_of(self.plan.arenas.segment, self.plan.arenas.layout)

    @cached_property
    def takeovers(self) -> tuple[tuple[int, str], ...]:
        """(row, why not) of each row that takes another over, by birth; the reason is empty where it may."""
        rows = self.plan.buffers
        claims = [row for row, buffer in enumerate(rows.id) if rows.takes_over[row] != buffer]
        taken: set[int] = set()
        found = []
        for row in sorted(claims, key=lambda r: (self.spans.birth[rows.id[r]], r)):
            why = self._why_not(row, taken)
            taken.add(rows.takes_over[row])
            found.append((row, why))
        return tuple(found)

    def _why_not(self, row: int, taken: set[int]) -> str:
        plan, rows = self.plan, self.plan.buffers
        written, read = rows.id[row], rows.takes_over[row]
        t = self.spans.birth[written]
        if plan.preset == "train_full":
            return "the preset overwrites nothing"
        if read in taken:
            return f"buffer {read} is taken over already"
        if read not in self.row_of or not 0 <= t < len(plan.order):
            return "there is no such place or op"
        other = self.row_of[read]
        if rows.arena[row] != rows.arena[other]:
            return "their arenas differ"
        if rows.slot[row] != rows.slot[other] or rows.offset[row] != rows.offset[other]:
            return "their slots or offsets differ"
        return next(objections(self.graph, self.spans, plan.order[t], t, (written, read)), "")

    @cached_property
    def items(self) -> tuple[tuple[Item, ...], ...]:
        """Per arena, its items by id. A takeover that may not be makes no chain."""
        rows = self.plan.buffers
        chains = {row: [row] for row in range(len(rows))}
        first = list(range(len(rows)))
        for row, why in self.takeovers:
            if not why:
                first[row] = first[self.row_of[rows.takes_over[row]]]
                chains[first[row]] += chains.pop(row)
        found: list[list[Item]] = [[] for _ in range(len(self.plan.arenas))]
        for root, members in chains.items():
            found[rows.arena[root]].append(self._item(tuple(members)))
        return tuple(tuple(items) for items in found)

    def together(self, slab: Sequence[int]) -> tuple[Item, ...]:
        """The items of these arenas, arena by arena."""
        return tuple(chain.from_iterable(self.items[arena] for arena in slab))

    def _item(self, rows: tuple[int, ...]) -> Item:
        ids = self.plan.buffers.id
        return Item(
            id=ids[rows[0]],
            rows=rows,
            birth=self.spans.birth[ids[rows[0]]],
            death=max(self.spans.death[ids[row]] for row in rows),
            bytes=max(self.padded[row] for row in rows),
        )


def most(items: Iterable[Item], *, weigh: bool) -> int:
    """The most items, or the most of their bytes, alive at once."""
    change: dict[int, int] = {}
    for item in items:
        if item.birth < item.death:
            weight = item.bytes if weigh else 1
            change[item.birth] = change.get(item.birth, 0) + weight
            change[item.death] = change.get(item.death, 0) - weight
    return max(accumulate(change[t] for t in sorted(change)), default=0)
