"""Reference simulator: an independent implementation of the specification, for differential tests of the planner.

It imports no code of the planner and derives each rule from the graph anew: per buffer the list of all positions that
use it (no running first and last), takeovers as dictionaries, slots as bits of one integer. It leaves packed offsets
out, which the specification does not fix. Every loop runs once over ops, values or sorted items; O(N log N) but for
the integer of busy slots, whose width is the most items live at once, so that a million buffers stay comparable.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from blake3 import blake3

from tmmu.ir.graph import Graph
from tmmu.ir.plan import ArenaSpec

PERSISTENT = ("parameter", "constant", "state")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Expected contents of a plan, by buffer id; slots are (arena name, slot number)."""

    span: dict[int, tuple[int, int]]
    takes_over: dict[int, int]
    slot: dict[int, tuple[str, int]]
    address: dict[tuple[str, int], int]
    slot_bytes: dict[tuple[str, int], int]
    max_live: dict[str, int]


@dataclass(slots=True)
class BufferUses:
    """Positions at which ops write, use (read or write) and save one buffer, and whether it is an output."""

    writes: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    saves: list[int] = field(default_factory=list)
    output: bool = False


def simulate(  # noqa: PLR0913 - what a plan depends on
    graph: Graph, order: Sequence[int], *, mode: str, preset: str, token: bytes, arenas: Sequence[ArenaSpec]
) -> Expected:
    """Spans, takeovers, slots and addresses of a legal graph that runs in this order."""
    mirror = mode == "backward" and "backward" not in graph.ops.stage
    uses = buffer_uses(graph, order, preset)
    spans = ((b, span_of(graph.buffers.role[b], len(order), mode, uses[b], mirror=mirror)) for b in range(len(uses)))
    span = {b: s for b, s in spans if s}
    takes_over = {b: b for b in span}
    if preset != "train_full":
        takes_over |= takeovers_of(graph, order, span, live_out_buffers(graph, order, mode, preset))
    items = chains(span, takes_over)
    slot = {b: s for spec in arenas for b, s in slots_of(graph, spec, items).items()}
    align = {spec.name: spec.alignment for spec in arenas}
    slot_bytes: dict[tuple[str, int], int] = {}
    for b in span:
        slot_bytes[slot[b]] = max(slot_bytes.get(slot[b], 0), padded_size(graph, arenas, b))
    return Expected(
        span=span,
        takes_over=takes_over,
        slot=slot,
        address={(arena, n): address_of(token, arena, n, align[arena]) for arena, n in sorted(slot_bytes)},
        slot_bytes=slot_bytes,
        max_live={spec.name: max_live_of(graph, spec.name, items) for spec in arenas},
    )


def arena_name(graph: Graph, buffer: int) -> str:
    """The arena of a buffer, by its role."""
    role = graph.buffers.role[buffer]
    if role in {"parameter", "constant"}:
        return "parameters"
    return {"state": "state", "gradient": "gradients"}.get(role, "activations")


def padded_size(graph: Graph, arenas: Sequence[ArenaSpec], buffer: int) -> int:
    """The least multiple of the arena's alignment that holds the buffer."""
    align = next(spec.alignment for spec in arenas if spec.name == arena_name(graph, buffer))
    return -(-graph.buffers.bytes[buffer] // align) * align


def buffer_uses(graph: Graph, order: Sequence[int], preset: str) -> list[BufferUses]:
    """Uses per buffer; values that ``preset`` recomputes count as not saved."""
    ops, buffer_of = graph.ops, graph.values.buffer
    uses = [BufferUses() for _ in range(len(graph.buffers))]
    written = {v for op in order for v in ops.writes[op]}
    dropped = {v for op in order if ops.recompute[op] for v in ops.writes[op]} if preset == "remat_enabled" else set()
    for t, op in enumerate(order):
        for v in ops.reads[op]:
            uses[buffer_of[v]].positions.append(t)
        for v in ops.writes[op]:
            uses[buffer_of[v]].positions.append(t)
            uses[buffer_of[v]].writes.append(t)
        for v in ops.saves[op]:
            if v not in dropped:
                uses[buffer_of[v]].saves.append(t)
    for v in graph.outputs:
        uses[buffer_of[v]].output |= v in written
    return uses


def span_of(role: str, steps: int, mode: str, uses: BufferUses, *, mirror: bool) -> tuple[int, int] | None:
    """(birth, death), or None for a buffer that a plan does not place.

    ``mirror``: the gradient of the op at ``t`` happens at ``2 * steps - 1 - t``.
    """
    if role == "input":
        return None
    if role in PERSISTENT:
        return (0, 2 * steps if mirror else steps)
    if not uses.writes:
        return None
    ends = [max(uses.positions) + 1]
    if uses.output:
        ends.append(steps)
    if uses.saves and mode == "forward":
        ends.append(steps)
    if uses.saves and mirror:
        ends.append((2 * steps - 1 - min(uses.saves)) + 1)
    return (min(uses.writes), max(ends))


def live_out_buffers(graph: Graph, order: Sequence[int], mode: str, preset: str) -> set[int]:
    """Buffers whose contents are needed after the last position: outputs and, in mode forward, saved buffers."""
    written = {v for op in order for v in graph.ops.writes[op]}
    needed = written & set(graph.outputs)
    if mode == "forward":
        dropped = {v for op in order if graph.ops.recompute[op] for v in graph.ops.writes[op]}
        saved = {v for op in order for v in graph.ops.saves[op]}
        needed |= saved - dropped if preset == "remat_enabled" else saved
    return {graph.values.buffer[v] for v in needed}


def takeovers_of(
    graph: Graph, order: Sequence[int], span: dict[int, tuple[int, int]], live_out: set[int]
) -> dict[int, int]:
    """Per written buffer, the read buffer whose bytes it takes over."""
    takeovers: dict[int, int] = {}
    taken: set[int] = set()
    for t, op in enumerate(order):
        for written, read in graph.ops.overwrites[op]:
            new, old = graph.values.buffer[written], graph.values.buffer[read]
            free = new not in takeovers and old not in taken and old not in live_out
            if free and _may_take(graph, op, t, new, old, read, span):
                takeovers[new] = old
                taken.add(old)
    return takeovers


def _may_take(  # noqa: PLR0913, PLR0917 - a rule of many parts
    graph: Graph, op: int, t: int, new: int, old: int, read: int, span: dict[int, tuple[int, int]]
) -> bool:
    if new not in span or old not in span or "state" in {graph.buffers.role[new], graph.buffers.role[old]}:
        return False
    if arena_name(graph, new) == "parameters" or arena_name(graph, new) != arena_name(graph, old):
        return False
    if span[new][0] != t or span[old][1] != t + 1 or graph.buffers.bytes[new] != graph.buffers.bytes[old]:
        return False
    v = graph.values
    reads_of_old = [x for x in graph.ops.reads[op] if v.buffer[x] == old]
    same = all(
        (v.offset[x], v.shape[x], v.stride[x], v.dtype[x])
        == (v.offset[read], v.shape[read], v.stride[read], v.dtype[read])
        for x in reads_of_old
    )
    return same and not any(v.buffer[x] == old for x in graph.ops.writes[op])


def chains(span: dict[int, tuple[int, int]], takes_over: dict[int, int]) -> dict[int, tuple[int, int, list[int]]]:
    """First buffer of each chain of takeovers to (birth, death, all its buffers)."""
    root: dict[int, int] = {}
    members: dict[int, list[int]] = {}
    for buffer in sorted(span, key=lambda b: (span[b][0], b)):
        before = takes_over[buffer]
        root[buffer] = buffer if before == buffer else root[before]
        members.setdefault(root[buffer], []).append(buffer)
    return {r: (span[r][0], max(span[b][1] for b in members[r]), members[r]) for r in sorted(members)}


def slots_of(graph: Graph, spec: ArenaSpec, items: dict[int, tuple[int, int, list[int]]]) -> dict[int, tuple[str, int]]:
    """Every buffer of one arena to its slot. Bit ``n`` of ``busy`` says that slot ``n`` is taken."""
    roots = [r for r in items if arena_name(graph, r) == spec.name]
    if spec.name in {"parameters", "state"}:
        return {buffer: (spec.name, number) for number, buffer in enumerate(roots)}
    chosen: dict[int, int] = {}
    busy = 0
    leaving: dict[int, list[int]] = {}
    ends = sorted({items[r][1] for r in roots}, reverse=True)
    for root in sorted(roots, key=lambda r: (items[r][0], -padded_size(graph, [spec], r), r)):
        birth, death, _ = items[root]
        while ends and ends[-1] <= birth:
            busy -= sum(1 << number for number in leaving.get(ends.pop(), ()))
        number = (~busy & (busy + 1)).bit_length() - 1
        busy |= 1 << number
        leaving.setdefault(death, []).append(number)
        chosen[root] = number
    return {buffer: (spec.name, chosen[root]) for root in roots for buffer in items[root][2]}


def max_live_of(graph: Graph, arena: str, items: dict[int, tuple[int, int, list[int]]]) -> int:
    """The most items of an arena alive at one position."""
    arena_items = [items[r] for r in items if arena_name(graph, r) == arena]
    return peak_sum(x for birth, death, _ in arena_items for x in ((birth, 1), (death, -1)))


def peak_sum(changes: Iterable[tuple[int, int]]) -> int:
    """The highest running sum of (position, change), by position, decreases first."""
    highest = level = 0
    for _, change in sorted(changes):
        level += change
        highest = max(highest, level)
    return highest


def address_of(token: bytes, arena: str, slot: int, alignment: int) -> int:
    """The virtual address of a slot: the first 8 bytes of its hash, rounded down to the alignment."""
    digest = blake3(token + b"tmmu_va" + arena.encode("utf-8") + slot.to_bytes(8, "little")).digest()
    return int.from_bytes(digest[:8], "little") // alignment * alignment
