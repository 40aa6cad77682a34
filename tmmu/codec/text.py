"""Graphs and plans as text, for review and debugging: one line per buffer, op and slot; stable, and ASCII."""

import json
from collections.abc import Iterator, Sequence

from tmmu.ir.fit import FitRecord
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan
from tmmu.ir.rewrite import SUBLIST
from tmmu.ir.ring import Ring


def print_graph(graph: Graph) -> str:
    """The graph without phase, modality and cost, one line per buffer and per op."""
    return "\n".join(_graph_lines(graph)) + "\n"


def print_plan(plan: Plan) -> str:
    """The plan, one line per arena, slot, buffer and metric."""
    return "\n".join(_plan_lines(plan)) + "\n"


def print_ring(ring: Ring) -> str:
    """The ring, one line per block, visit and copy; ``7-1`` is visit 7 of the pass before."""
    return "\n".join(_ring_lines(ring)) + "\n"


def _graph_lines(graph: Graph) -> Iterator[str]:
    buffers, notes = graph.buffers, graph.notes
    yield f"graph {_quote(notes.name)} for {_word(graph.target)}, {graph.ir_hash.hex()}"
    for buffer, (size, role) in enumerate(zip(buffers.bytes, buffers.role, strict=True)):
        yield f"b{buffer} {_word(role)} {size}{_tail(' ', notes.buffers[buffer])}"
    for op in range(len(graph.ops)):
        yield _op_line(graph, op)
    yield f"inputs {_values(graph, graph.inputs)}"
    yield f"outputs {_values(graph, graph.outputs)}"


def _op_line(graph: Graph, op: int) -> str:
    ops, notes = graph.ops, graph.notes.ops
    parts = [f"op{op} {_word(ops.stage[op])} {_word(ops.target[op])}({_values(graph, ops.reads[op])})"]
    parts.append(f"-> {_values(graph, ops.writes[op])}")
    if ops.overwrites[op]:
        parts.append("over " + ", ".join(f"%{written}=%{read}" for written, read in ops.overwrites[op]))
    if ops.saves[op]:
        parts.append("saves " + ", ".join(f"%{value}" for value in ops.saves[op]))
    if ops.recompute[op]:
        parts.append("recompute")
    return " ".join(parts) + _tail(" # ", notes.module[op]) + _tail(" @ ", notes.source[op])


def _values(graph: Graph, ids: Sequence[int]) -> str:
    return ", ".join(_value(graph, value) for value in ids)


def _value(graph: Graph, value: int) -> str:
    """``%id:dtype[shape]buffer+offset``, and the strides where they are not those of a contiguous tensor."""
    values = graph.values
    shape, stride = values.shape[value], values.stride[value]
    offset = f"+{values.offset[value]}" if values.offset[value] else ""
    strides = "" if stride == _contiguous(shape) else f"/({','.join(map(str, stride))})"
    extents = ",".join(map(str, shape))
    return f"%{value}:{_word(values.dtype[value])}[{extents}]{strides}b{values.buffer[value]}{offset}"


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    stride, step = [], 1
    for extent in reversed(shape):
        stride.append(step)
        step *= max(1, extent)
    return tuple(reversed(stride))


def _plan_lines(plan: Plan) -> Iterator[str]:
    yield f"plan {plan.digest.hex()} of {plan.ir_hash.hex()}"
    yield f"mode {_word(plan.mode)} preset {_word(plan.preset)} token {plan.token_prefix.hex()}"
    yield f"order {_runs(plan.order)}"
    names = [_word(name) for name in plan.arenas.name]
    for arena in range(len(plan.arenas)):
        yield _arena_line(plan, arena)
    table, rows = plan.slots, plan.buffers
    for arena, slot, address, size in zip(table.arena, table.slot, table.address, table.bytes, strict=True):
        yield f"slot {names[arena]}.{slot} {address:#018x} {size}"
    for row, buffer in enumerate(rows.id):
        place = f"{names[rows.arena[row]]}.{rows.slot[row]} {rows.offset[row]}+{rows.bytes[row]}"
        over = f" over b{rows.takes_over[row]}" if rows.takes_over[row] != buffer else ""
        yield f"b{buffer} {place} [{rows.birth[row]},{rows.death[row]}){over}"
    for name in sorted(plan.metrics):
        yield f"metric {_word(name)} {plan.metrics[name]}"
    if plan.ring:
        yield from _ring_lines(plan.ring)
    if plan.fit:
        yield from _fit_lines(plan.fit)


def _fit_lines(fit: FitRecord) -> Iterator[str]:
    rewrite, cost = fit.rewrite, fit.cost
    budget = "" if fit.budget_bytes is None else f" budget {fit.budget_bytes}"
    yield f"fit of {rewrite.base_hash.hex()}{budget} flops {cost.flops} bytes {cost.bytes} time_ppm {cost.time_ppm}"
    for lever in fit.levers:
        yield f"lever {_word(lever)}"
    for rule in fit.near:
        yield f"near {_word(rule)}"
    if fit.fused is not None:
        yield f"fused from {fit.fused.rewritten_hash.hex()}"
        yield from (f"apart {_word(digest)}" for digest in fit.fused.apart)
    for op, (origin, kind, part) in enumerate(zip(rewrite.origin, rewrite.kind, rewrite.part, strict=True)):
        entries = f" [{part[0]},{part[1]})" if kind == SUBLIST else "".join(f" {number}" for number in part)
        yield f"op{op} {_word(kind)} op{origin}{entries}"


def _ring_lines(ring: Ring) -> Iterator[str]:
    yield f"ring {_word(ring.policy)} capacity {ring.capacity} alignment {ring.alignment} depth {ring.depth}"
    for index, block in enumerate(ring.blocks):
        members = " ".join(f"b{member.buffer}+{member.offset}" for member in block.members)
        stays = "resident" if block.resident else "streamed"
        yield f"block {index} {_quote(block.name)} {block.address}+{block.bytes} {stays} {members}"
    for index, visit in enumerate(ring.visits):
        yield f"visit {index} block {visit.block} ops {visit.first}-{visit.last}"
    for copy in ring.copies:
        waits = " ".join(f"{wait.visit}-{wait.lag}" for wait in copy.waits)
        yield f"copy {copy.visit} start {copy.start.visit}-{copy.start.lag} waits {waits}"


def _arena_line(plan: Plan, arena: int) -> str:
    table = plan.arenas
    request = f"{_word(table.segment[arena])} {_word(table.layout[arena])} alignment {table.alignment[arena]}"
    request += f" page {table.page[arena]} capacity {table.capacity[arena]}"
    needs = f"slots {table.slots[arena]} peak {table.peak[arena]} bound {table.bound[arena]}"
    return f"arena {_word(table.name[arena])} {request} {needs}" + (" proven" if table.proven[arena] else "")


def _runs(order: Sequence[int]) -> str:
    """``0-5 9 7``: ids that follow each other are one run."""
    runs: list[list[int]] = []
    for op in order:
        if runs and op == runs[-1][1] + 1:
            runs[-1][1] = op
        else:
            runs.append([op, op])
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _quote(text: str) -> str:
    return json.dumps(text)


def _word(text: str) -> str:
    """The text itself where it is one plain ASCII word, else quoted: names come from outside and may hold anything."""
    return text if text.isascii() and text.replace(".", "").replace("_", "").isalnum() else _quote(text)


def _tail(mark: str, text: str) -> str:
    return mark + _quote(text) if text else ""
