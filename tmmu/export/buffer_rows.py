"""The placed buffers of a plan as rows: where each lies and when it lives, and what its graph says of it.

Every format shows these rows. Without a graph, what a plan does not say is empty. Linear in buffers and values.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tmmu.compare.timeline import PlacedItem, placed_items
from tmmu.ir.graph import PERSISTENT_ROLES, Graph
from tmmu.ir.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedBuffer:
    """One placed buffer. ``bytes`` as the model asks for them, ``None`` without a graph; ``padded_bytes`` as planned.

    ``offset`` is a byte of the arena's slab, ``address`` the virtual one of its slot, live in ``[birth, death)``.
    ``takes_over``: the buffer in whose bytes it is computed, or ``None``. ``maker``, ``module`` and ``source`` are of
    the op that writes it first; empty for what is there before the step.
    """

    id: int
    name: str
    role: str
    dtypes: tuple[str, ...]
    bytes: int | None
    padded_bytes: int
    alignment: int
    arena: str
    slot: int
    offset: int
    address: int
    birth: int
    death: int
    takes_over: int | None
    maker: str
    module: str
    source: str

    @property
    def title(self) -> str:
        """What to call it where there is room for one name: its own, its maker's, or its number."""
        return self.name or self.maker or f"buffer {self.id}"


def buffer_rows(plan: Plan, graph: Graph | None) -> tuple[PlacedBuffer, ...]:
    """The rows, in the plan's order: by id."""
    placed, arenas, slots = plan.buffers, plan.arenas, plan.slots
    address_of = dict(zip(zip(slots.arena, slots.slot, strict=True), slots.address, strict=True))
    dtypes = _dtypes(graph) if graph else {}
    return tuple(
        PlacedBuffer(
            id=buffer,
            dtypes=dtypes.get(buffer, ()),
            bytes=graph.buffers.bytes[buffer] if graph else None,
            padded_bytes=placed.bytes[row],
            alignment=arenas.alignment[placed.arena[row]],
            arena=arenas.name[placed.arena[row]],
            slot=placed.slot[row],
            offset=placed.offset[row],
            address=address_of[placed.arena[row], placed.slot[row]],
            birth=placed.birth[row],
            death=placed.death[row],
            takes_over=None if placed.takes_over[row] == buffer else placed.takes_over[row],
            **_texts(plan, graph, row),
        )
        for row, buffer in enumerate(placed.id)
    )


def _dtypes(graph: Graph) -> dict[int, tuple[str, ...]]:
    """Per buffer, the dtypes of its windows, each once, in the order of the values."""
    found: dict[int, dict[str, None]] = {}
    for buffer, dtype in zip(graph.values.buffer, graph.values.dtype, strict=True):
        found.setdefault(buffer, {})[dtype] = None
    return {buffer: tuple(names) for buffer, names in found.items()}


def _texts(plan: Plan, graph: Graph | None, row: int) -> dict[str, str]:
    texts = dict.fromkeys(("name", "role", "maker", "module", "source"), "")
    if graph is None:
        return texts
    buffer, notes = plan.buffers.id[row], graph.notes
    texts |= {"name": notes.buffers[buffer], "role": graph.buffers.role[buffer]}
    if texts["role"] in PERSISTENT_ROLES:
        return texts
    op = plan.order[plan.buffers.birth[row]]
    return texts | {"maker": graph.ops.target[op], "module": notes.ops.module[op], "source": notes.ops.source[op]}


def items_of(plan: Plan, *, segment: str | None = None) -> Iterator[PlacedItem]:
    """What lies in one place as one, rows that take over one another together; of one segment where it is named."""
    segments = plan.arenas.segment
    return placed_items(plan, {arena for arena, name in enumerate(segments) if segment in (None, name)})


def timeline_end(plan: Plan) -> int:
    """The position after the last: of the order, or of gradients that mirror it."""
    return max(len(plan.order), *plan.buffers.death, 0)
