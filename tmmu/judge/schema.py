"""What a plan looks like, whatever its graph means: columns, ids, words. The judge asks this first."""

from collections.abc import Iterator
from itertools import chain
from typing import Final

from tmmu.ir.fault import U64_MAX, Fault
from tmmu.ir.plan import LAYOUTS, MODES, PRESETS, Arenas, Placements, Plan, Slots
from tmmu.judge.context import ARENAS, NEVER_REUSED, Case


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
            wanted = _TYPES.get(column, int)
            if not set(map(type, cells)) <= {wanted}:
                yield Fault(rule="columns", what=f"{name}.{column} holds more than {wanted.__name__}")
            elif wanted is int and cells and not 0 <= min(cells) <= max(cells) <= U64_MAX:
                yield Fault(rule="columns", what=f"{name}.{column} leaves the unsigned 64-bit numbers")
    if not set(map(type, plan.order)) <= {int}:
        yield Fault(rule="columns", what="the order holds more than int")


_TYPES: Final = {"name": str, "segment": str, "layout": str, "proven": bool}


def words(plan: Plan) -> Iterator[Fault]:
    """Mode, preset and layouts are known; the token's prefix has 8 bytes."""
    for what, word, known in (("mode", plan.mode, MODES), ("preset", plan.preset, PRESETS)):
        if word not in known:
            yield Fault(rule="words", what=f"{what} {word!r} is none of {', '.join(known)}")
    for name, layout in zip(plan.arenas.name, plan.arenas.layout, strict=True):
        if layout not in LAYOUTS:
            yield Fault(rule="words", what=f"layout {layout!r} is none of {', '.join(LAYOUTS)}", arena=name)
    if len(plan.token_prefix) != 8:
        yield Fault(rule="words", what=f"the token's prefix has {len(plan.token_prefix)} bytes, not 8")


def arenas(plan: Plan) -> Iterator[Fault]:
    """The arenas are those of every plan, in order, each in its segment; text and data are sequential."""
    table = plan.arenas
    found = tuple(zip(table.name, table.segment, strict=True))
    if found != ARENAS:
        yield Fault(rule="arenas", what=f"the arenas are {found}, not {ARENAS}")
        return
    for arena in NEVER_REUSED:
        if table.layout[arena] != "sequential":
            what = f"arena {table.name[arena]} has layout {table.layout[arena]}, not sequential"
            yield Fault(rule="arenas", what=what, arena=table.name[arena])


def cells(plan: Plan) -> Iterator[Fault]:
    """Rows of buffers are in id order, each once, in slots that exist; the slot table has each slot in order."""
    rows, table, count = plan.buffers, plan.slots, plan.arenas.slots
    for buffer, arena, slot in zip(rows.id, rows.arena, rows.slot, strict=True):
        if arena >= len(count) or slot >= count[arena]:
            yield Fault(rule="cells", what=f"buffer {buffer} is in slot {slot} of arena {arena}", buffer=buffer)
    if any(one >= other for one, other in zip(rows.id, rows.id[1:], strict=False)):
        yield Fault(rule="cells", what="the rows of buffers are not in id order, each once")
    found, wanted = tuple(zip(table.arena, table.slot, strict=True)), sum(count)
    if len(found) != wanted or found != tuple((a, s) for a, n in enumerate(count) for s in range(n)):
        yield Fault(rule="cells", what=f"the slot table has {len(found)} rows, not each of {wanted} slots in order")


def ids(case: Case) -> Iterator[Fault]:
    """Ops and buffers that the plan names exist in its graph."""
    plan, ops, buffers = case.plan, len(case.graph.ops), len(case.graph.buffers)
    for op in plan.order:
        if not 0 <= op < ops:
            yield Fault(rule="ids", what=f"the order names op {op} of {ops}")
    for buffer in chain(plan.buffers.id, plan.buffers.takes_over):
        if buffer >= buffers:
            yield Fault(rule="ids", what=f"a row names buffer {buffer} of {buffers}", buffer=buffer)


PARTS: Final = (columns, words, arenas, cells)
"""What needs no graph; each trusts those before it."""


def faults(plan: Plan) -> tuple[Fault, ...]:
    """The faults of the first of ``PARTS`` that has any."""
    return next((found for found in (tuple(part(plan)) for part in PARTS) if found), ())
