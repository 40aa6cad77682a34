"""What a plan looks like, whatever its graph means: columns, words, arenas, cells; then the ids of its graph.

Each check trusts those before it, and the rules of ``judge.check`` trust all of them: no later rule has to distrust an
index, a type or a sign.
"""

from collections.abc import Iterator
from itertools import chain, pairwise
from operator import ne
from typing import Final

from tmmu.ir.fault import U64_MAX, Fault
from tmmu.ir.plan import LAYOUTS, MODES, PRESETS, Arenas, Placements, Plan, Slots
from tmmu.judge.context import ARENAS, NEVER_REUSED, CheckContext
from tmmu.judge.rewrite.fit_schema import fit_form


def columns(plan: Plan) -> Iterator[Fault]:
    """Tables are rectangular, their numbers unsigned 64-bit integers."""
    tables: tuple[tuple[str, Arenas | Slots | Placements], ...] = (
        ("arenas", plan.arenas),
        ("slots", plan.slots),
        ("buffers", plan.buffers),
    )
    for name, table in tables:
        for column in type(table).__slots__:
            cells = getattr(table, column)
            if len(cells) != len(table):
                yield Fault(rule="columns", what=f"{name}.{column} has {len(cells)} rows, not {len(table)}")
            cell_type = _TYPES.get(column, int)
            if not set(map(type, cells)) <= {cell_type}:
                yield Fault(rule="columns", what=f"{name}.{column} holds more than {cell_type.__name__}")
            elif cell_type is int and cells and not 0 <= min(cells) <= max(cells) <= U64_MAX:
                yield Fault(rule="columns", what=f"{name}.{column} leaves the unsigned 64-bit numbers")
    if not set(map(type, plan.order)) <= {int}:
        yield Fault(rule="columns", what="the order holds more than int")


_TYPES: Final = {"name": str, "segment": str, "layout": str, "proven": bool}


def words(plan: Plan) -> Iterator[Fault]:
    """Mode, preset and layouts are known; the token's prefix has 8 bytes."""
    for name, word, known_words in (("mode", plan.mode, MODES), ("preset", plan.preset, PRESETS)):
        if word not in known_words:
            yield Fault(rule="words", what=f"{name} {word!r} is none of {', '.join(known_words)}")
    for name, layout in zip(plan.arenas.name, plan.arenas.layout, strict=True):
        if layout not in LAYOUTS:
            yield Fault(rule="words", what=f"layout {layout!r} is none of {', '.join(LAYOUTS)}", arena=name)
    if len(plan.token_prefix) != 8:
        yield Fault(rule="words", what=f"the token's prefix has {len(plan.token_prefix)} bytes, not 8")


def arenas(plan: Plan) -> Iterator[Fault]:
    """The arenas are those of every plan, in order, each in its segment; text and data are sequential."""
    table = plan.arenas
    listed = tuple(zip(table.name, table.segment, strict=True))
    if listed != ARENAS:
        yield Fault(rule="arenas", what=f"the arenas are {listed}, not {ARENAS}")
        return
    for arena in NEVER_REUSED:
        if table.layout[arena] != "sequential":
            message = f"arena {table.name[arena]} has layout {table.layout[arena]}, not sequential"
            yield Fault(rule="arenas", what=message, arena=table.name[arena])


def cells(plan: Plan) -> Iterator[Fault]:
    """Rows of buffers are in id order, each once, in slots that exist; the slot table has each slot in order."""
    rows, table, count = plan.buffers, plan.slots, plan.arenas.slots
    for buffer, arena, slot in zip(rows.id, rows.arena, rows.slot, strict=True):
        if arena >= len(count) or slot >= count[arena]:
            yield Fault(rule="cells", what=f"buffer {buffer} is in slot {slot} of arena {arena}", buffer=buffer)
    if any(low >= high for low, high in pairwise(rows.id)):
        yield Fault(rule="cells", what="the rows of buffers are not in id order, each once")
    # The lengths are compared first: ``count`` may claim 2**64 slots, which nothing may try to enumerate.
    total = sum(count)
    expected = ((a, s) for a, n in enumerate(count) for s in range(n))
    if len(table) != total or any(map(ne, zip(table.arena, table.slot, strict=True), expected)):
        yield Fault(rule="cells", what=f"the slot table has {len(table)} rows, not each of {total} slots in order")


def ids(context: CheckContext) -> Iterator[Fault]:
    """Ops and buffers that the plan names exist in its graph, and each op has a row in what it was made of."""
    plan, ops, buffers = context.plan, len(context.graph.ops), len(context.graph.buffers)
    for op in plan.order:
        if not 0 <= op < ops:
            yield Fault(rule="ids", what=f"the order names op {op} of {ops}")
    for buffer in chain(plan.buffers.id, plan.buffers.takes_over):
        if buffer >= buffers:
            yield Fault(rule="ids", what=f"a row names buffer {buffer} of {buffers}", buffer=buffer)
    if plan.fit is not None and plan.fit.fused is None and len(plan.fit.rewrite) != ops:
        yield Fault(rule="ids", what=f"the rewrite has {len(plan.fit.rewrite)} rows for {ops} ops")


CHECKS: Final = (columns, words, arenas, cells, fit_form)
"""What needs no graph."""
NAMES: Final = ("columns", "words", "arenas", "cells", "fit-form")


def schema_faults(plan: Plan) -> tuple[Fault, ...]:
    """The faults of the first of ``CHECKS`` that has any."""
    return next((faults for faults in (tuple(check(plan)) for check in CHECKS) if faults), ())
