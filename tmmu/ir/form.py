"""What a plan looks like, whatever its graph means: columns, ids, words. The judge asks this first."""

from collections.abc import Iterator
from typing import Final

from tmmu.ir.case import ARENAS, NEVER_REUSED, Case
from tmmu.ir.fault import U64_MAX, Fault
from tmmu.ir.plan import LAYOUTS, MODES, PRESETS, Arenas, Placements, Slots


def columns(case: Case) -> Iterator[Fault]:
    """Tables are rectangular, their numbers unsigned 64-bit integers."""
    plan = case.plan
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


_TYPES: Final = {"name": str, "segment": str, "layout": str, "proven": bool}


def words(case: Case) -> Iterator[Fault]:
    """Mode, preset and layouts are known; the token's prefix has 8 bytes."""
    plan = case.plan
    for what, word, known in (("mode", plan.mode, MODES), ("preset", plan.preset, PRESETS)):
        if word not in known:
            yield Fault(rule="words", what=f"{what} {word!r} is none of {', '.join(known)}")
    for name, layout in zip(plan.arenas.name, plan.arenas.layout, strict=True):
        if layout not in LAYOUTS:
            yield Fault(rule="words", what=f"layout {layout!r} is none of {', '.join(LAYOUTS)}", arena=name)
    if len(plan.token_prefix) != 8:
        yield Fault(rule="words", what=f"the token's prefix has {len(plan.token_prefix)} bytes, not 8")


def arenas(case: Case) -> Iterator[Fault]:
    """The arenas are those of every plan, in order, each in its segment; text and data are sequential."""
    table = case.plan.arenas
    found = tuple(zip(table.name, table.segment, strict=True))
    if found != ARENAS:
        yield Fault(rule="arenas", what=f"the arenas are {found}, not {ARENAS}")
        return
    for arena in NEVER_REUSED:
        if table.layout[arena] != "sequential":
            what = f"arena {table.name[arena]} has layout {table.layout[arena]}, not sequential"
            yield Fault(rule="arenas", what=what, arena=table.name[arena])


def ids(case: Case) -> Iterator[Fault]:
    """Ops, buffers, arenas and slots that the plan names exist; a buffer has one row, and rows are in id order."""
    plan, rows = case.plan, case.plan.buffers
    ops, buffers, count = len(case.graph.ops), len(case.graph.buffers), len(plan.arenas)
    for op in plan.order:
        if type(op) is not int or not 0 <= op < ops:
            yield Fault(rule="ids", what=f"the order names op {op!r} of {ops}")
    for buffer, arena, slot, other in zip(rows.id, rows.arena, rows.slot, rows.takes_over, strict=True):
        if max(buffer, other) >= buffers:
            yield Fault(rule="ids", what=f"a row names buffer {max(buffer, other)} of {buffers}", buffer=buffer)
        if arena >= count or slot >= plan.arenas.slots[arena]:
            yield Fault(rule="ids", what=f"buffer {buffer} is in slot {slot} of arena {arena}", buffer=buffer)
    if any(one >= other for one, other in zip(rows.id, rows.id[1:], strict=False)):
        yield Fault(rule="ids", what="the rows of buffers are not in id order, each once")
    cells = tuple(zip(plan.slots.arena, plan.slots.slot, strict=True))
    wanted = sum(plan.arenas.slots)
    if len(cells) != wanted or cells != tuple((a, s) for a, n in enumerate(plan.arenas.slots) for s in range(n)):
        yield Fault(rule="ids", what=f"the slot table has {len(cells)} rows, not each of {wanted} slots in order")
