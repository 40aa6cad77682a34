"""The rows of the memory map: every placed buffer, where it lies and when, what it is and who touches it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tmmu.ir.graph import PERSISTENT_ROLES, Graph
from tmmu.ir.ids import BufferId, ValueId
from tmmu.ir.plan import Placements, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class MapBuffer:
    """One placed buffer: a rectangle ``[birth, death)`` in positions by ``[offset, offset + bytes)`` of its slab.

    ``bytes`` is padded, ``size`` is not; ``slot_row`` a row of the plan's slots, which has the address; ``takes_over``
    the buffer in whose bytes it is computed, or ``None``. ``windows``: dtype and shape of each distinct value, as
    ``float32[4, 256]``, first its own. ``writers`` and ``readers`` are positions. ``op`` and ``source`` are of the
    first writer; what is there before the step has none, and for module what its name says. Without a graph, texts
    are empty, tuples too, ``size`` is ``None`` and ``role`` the arena's name.
    """

    id: int
    name: str
    role: str
    dtype: str
    windows: tuple[str, ...]
    module: str
    source: str
    op: str
    arena: int
    slot_row: int
    offset: int
    bytes: int
    size: int | None
    birth: int
    death: int
    takes_over: int | None
    writers: tuple[int, ...]
    readers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _GraphFacts:
    """What the graph says of each buffer, by id."""

    graph: Graph
    order: Sequence[int]
    windows: Sequence[Sequence[str]]
    writers: Sequence[Sequence[int]]
    readers: Sequence[Sequence[int]]


def map_buffers(plan: Plan, graph: Graph | None) -> tuple[MapBuffer, ...]:
    """Every placed buffer, in the plan's order. Linear in buffers, values and edges."""
    slots = {key: row for row, key in enumerate(zip(plan.slots.arena, plan.slots.slot, strict=True))}
    facts = None if graph is None else _graph_facts(plan, graph)
    return tuple(_row(plan, facts, slots, row) for row in range(len(plan.buffers)))


def _row(plan: Plan, facts: _GraphFacts | None, slots: dict[tuple[int, int], int], row: int) -> MapBuffer:
    placed = plan.buffers
    buffer, arena, over = placed.id[row], placed.arena[row], placed.takes_over[row]
    windows = tuple(facts.windows[buffer]) if facts else ()
    writers = tuple(facts.writers[buffer]) if facts else ()
    op, module, source = _maker(facts, buffer, writers) if facts else ("", "", "")
    return MapBuffer(
        id=buffer,
        name=facts.graph.notes.buffers[buffer] if facts else "",
        role=facts.graph.buffers.role[buffer] if facts else plan.arenas.name[arena],
        dtype=windows[0].partition("[")[0] if windows else "",
        windows=windows,
        module=module,
        source=source,
        op=op,
        arena=arena,
        slot_row=slots.get((arena, placed.slot[row]), -1),
        **_place(placed, row),
        size=facts.graph.buffers.bytes[buffer] if facts else None,
        takes_over=None if over == buffer else over,
        writers=writers,
        readers=tuple(facts.readers[buffer]) if facts else (),
    )


def _place(placed: Placements, row: int) -> dict[str, int]:
    return {column: getattr(placed, column)[row] for column in ("offset", "bytes", "birth", "death")}


def _maker(facts: _GraphFacts, buffer: BufferId, writers: Sequence[int]) -> tuple[str, str, str]:
    """Operator, module and line of what writes the buffer first."""
    graph = facts.graph
    if graph.buffers.role[buffer] in PERSISTENT_ROLES:
        return "", graph.notes.buffers[buffer].rpartition(".")[0], ""
    if not writers:
        return "", "", ""
    op, notes = facts.order[writers[0]], graph.notes.ops
    return graph.ops.target[op], notes.module[op], notes.source[op]


def _graph_facts(plan: Plan, graph: Graph) -> _GraphFacts:
    count = len(graph.buffers)
    windows: list[dict[str, None]] = [{} for _ in range(count)]
    for value, buffer in enumerate(graph.values.buffer):
        windows[buffer][f"{graph.values.dtype[value]}{list(graph.values.shape[value])}"] = None
    writers: list[list[int]] = [[] for _ in range(count)]
    readers: list[list[int]] = [[] for _ in range(count)]
    for position, op in enumerate(plan.order):
        for buffer in _buffers_of(graph, graph.ops.writes[op]):
            writers[buffer].append(position)
        for buffer in _buffers_of(graph, graph.ops.reads[op]):
            readers[buffer].append(position)
    texts = [list(texts) for texts in windows]
    return _GraphFacts(graph=graph, order=plan.order, windows=texts, writers=writers, readers=readers)


def _buffers_of(graph: Graph, values: Sequence[ValueId]) -> Iterator[BufferId]:
    """The buffers of these values, each once, first met first."""
    return iter(dict.fromkeys(graph.values.buffer[value] for value in values))
