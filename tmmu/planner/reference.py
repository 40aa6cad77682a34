"""The reference simulator: the specification written down as plainly as possible, to compare the planner with.

Quadratic, for small graphs, and on purpose without any code of the planner: each rule is read off the graph
anew. It says nothing of packed offsets, which the specification leaves free.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from blake3 import blake3

from tmmu.ir.graph import Graph
from tmmu.ir.plan import ArenaSpec

KEPT = ("parameter", "constant", "state")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a plan must say, by buffer id; slots by (arena name, slot number)."""

    span: dict[int, tuple[int, int]]
    takes_over: dict[int, int]
    slot: dict[int, tuple[str, int]]
    address: dict[tuple[str, int], int]
    slot_bytes: dict[tuple[str, int], int]
    max_live: dict[str, int]


def simulate(  # noqa: PLR0913 - what a plan depends on
    graph: Graph, order: Sequence[int], *, mode: str, preset: str, token: bytes, arenas: Sequence[ArenaSpec]
) -> Expected:
    """The one right answer for a legal graph run in this order."""
    span = {b: s for b in range(len(graph.buffers)) if (s := span_of(graph, order, mode, preset, b))}
    takes_over = {b: b for b in span}
    if preset != "train_full":
        takes_over |= takeovers_of(graph, order, span, kept_of(graph, order, mode, preset))
    slot = {b: s for spec in arenas for b, s in slots_of(graph, spec, span, takes_over).items()}
    size = {b: padded(graph, arenas, b) for b in span}
    used = sorted(set(slot.values()))
    align = {spec.name: spec.alignment for spec in arenas}
    return Expected(
        span=span,
        takes_over=takes_over,
        slot=slot,
        address={(arena, number): address_of(token, arena, number, align[arena]) for arena, number in used},
        slot_bytes={key: max(size[b] for b in span if slot[b] == key) for key in used},
        max_live={spec.name: max_live_of(graph, spec.name, span, takes_over) for spec in arenas},
    )


def arena_name(graph: Graph, buffer: int) -> str:
    """Where a buffer belongs, by its role."""
    role = graph.buffers.role[buffer]
    if role in {"parameter", "constant"}:
        return "parameters"
    return {"state": "state", "gradient": "gradients"}.get(role, "activations")


def padded(graph: Graph, arenas: Sequence[ArenaSpec], buffer: int) -> int:
    """The least multiple of the arena's alignment that holds the buffer."""
    align = next(spec.alignment for spec in arenas if spec.name == arena_name(graph, buffer))
    return -(-graph.buffers.bytes[buffer] // align) * align


def span_of(graph: Graph, order: Sequence[int], mode: str, preset: str, buffer: int) -> tuple[int, int] | None:
    """The positions from birth to death, or None for what a plan does not place."""
    steps = len(order)
    mirror = mode == "backward" and all(stage != "backward" for stage in graph.ops.stage)
    role = graph.buffers.role[buffer]
    if role == "input":
        return None
    if role in KEPT:
        return (0, 2 * steps if mirror else steps)
    mine = {v for v in range(len(graph.values)) if graph.values.buffer[v] == buffer}
    ops = graph.ops
    writes = [t for t in range(steps) if mine & set(ops.writes[order[t]])]
    if not writes:
        return None
    ends = [t + 1 for t in range(steps) if mine & (set(ops.reads[order[t]]) | set(ops.writes[order[t]]))]
    made = {v for op in order for v in ops.writes[op]}
    if mine & made & set(graph.outputs):
        ends.append(steps)
    dropped = {v for op in order if ops.recompute[op] for v in ops.writes[op]} if preset == "remat_enabled" else set()
    saved = [t for t in range(steps) if (mine - dropped) & set(ops.saves[order[t]])]
    if saved and mode == "forward":
        ends.append(steps)
    if saved and mirror:
        ends.append((2 * steps - 1 - min(saved)) + 1)
    return (min(writes), max(ends))


def kept_of(graph: Graph, order: Sequence[int], mode: str, preset: str) -> set[int]:
    """Buffers whose contents are needed when the order has run: outputs, and in mode forward what is saved."""
    made = {v for op in order for v in graph.ops.writes[op]}
    needed = made & set(graph.outputs)
    if mode == "forward":
        dropped = {v for op in order if graph.ops.recompute[op] for v in graph.ops.writes[op]}
        saved = {v for op in order for v in graph.ops.saves[op]}
        needed |= saved - dropped if preset == "remat_enabled" else saved
    return {graph.values.buffer[v] for v in needed}


def takeovers_of(
    graph: Graph, order: Sequence[int], span: dict[int, tuple[int, int]], kept: set[int]
) -> dict[int, int]:
    """Written buffer to the read buffer whose bytes it is computed in."""
    found: dict[int, int] = {}
    for t, op in enumerate(order):
        for written, read in graph.ops.overwrites[op]:
            new, old = graph.values.buffer[written], graph.values.buffer[read]
            free = new not in found and old not in found.values() and old not in kept
            if free and _may_take(graph, op, t, new, old, read, span):
                found[new] = old
    return found


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
    seen = [x for x in graph.ops.reads[op] if v.buffer[x] == old]
    same = all(
        (v.offset[x], v.shape[x], v.stride[x], v.dtype[x])
        == (v.offset[read], v.shape[read], v.stride[read], v.dtype[read])
        for x in seen
    )
    return same and not any(v.buffer[x] == old for x in graph.ops.writes[op])


def chains(span: dict[int, tuple[int, int]], takes_over: dict[int, int]) -> dict[int, tuple[int, int, list[int]]]:
    """First buffer of each chain of takeovers to (birth, death, all its buffers)."""
    members: dict[int, list[int]] = {}
    for buffer in sorted(span):
        root = buffer
        while takes_over[root] != root:
            root = takes_over[root]
        members.setdefault(root, []).append(buffer)
    return {r: (span[r][0], max(span[b][1] for b in bs), bs) for r, bs in members.items()}


def slots_of(
    graph: Graph, spec: ArenaSpec, span: dict[int, tuple[int, int]], takes_over: dict[int, int]
) -> dict[int, tuple[str, int]]:
    """Every buffer of one arena to its slot."""
    inside = {r: c for r, c in chains(span, takes_over).items() if arena_name(graph, r) == spec.name}
    if spec.name in {"parameters", "state"}:
        return {buffer: (spec.name, number) for number, buffer in enumerate(sorted(inside))}
    chosen: dict[int, int] = {}
    for root in sorted(inside, key=lambda r: (inside[r][0], -padded(graph, [spec], r), r)):
        birth = inside[root][0]
        busy = {chosen[r] for r in chosen if inside[r][1] > birth}
        chosen[root] = next(number for number in range(len(inside)) if number not in busy)
    return {buffer: (spec.name, chosen[root]) for root in inside for buffer in inside[root][2]}


def max_live_of(graph: Graph, arena: str, span: dict[int, tuple[int, int]], takes_over: dict[int, int]) -> int:
    """The most items of an arena alive at one position."""
    inside = [c for r, c in chains(span, takes_over).items() if arena_name(graph, r) == arena]
    return max((sum(c[0] <= t < c[1] for c in inside) for t in {c[0] for c in inside}), default=0)


def address_of(token: bytes, arena: str, slot: int, alignment: int) -> int:
    """The name of a slot."""
    digest = blake3(token + b"tmmu_va" + arena.encode("utf-8") + slot.to_bytes(8, "little")).digest()
    return int.from_bytes(digest[:8], "little") // alignment * alignment
