"""Rules of the table ``buffers``: which buffers a plan places, in which arena, when, how large, at which offset."""

from collections.abc import Iterator, Sequence
from itertools import accumulate

from tmmu.ir.fault import Fault
from tmmu.ir.problem import PackProblem
from tmmu.judge.context import ARENA_OF_ROLE, CheckContext, Item
from tmmu.judge.packing import overlapping_pairs


def placed_buffers(context: CheckContext) -> Iterator[Fault]:
    """Exactly the buffers that need a place have one."""
    needed, placed = set(context.spans.placed), set(context.plan.buffers.id)
    for buffer in sorted(needed ^ placed):
        problem = "has no place" if buffer in needed else "has a place and needs none"
        message = f"{context.graph.buffers.role[buffer]} buffer {buffer} {problem}"
        yield Fault(rule="placed", what=message, buffer=buffer)


def arena(context: CheckContext) -> Iterator[Fault]:
    """A buffer is in the arena of its role."""
    rows, name = context.plan.buffers, context.plan.arenas.name
    for buffer, index in zip(rows.id, rows.arena, strict=True):
        role = context.graph.buffers.role[buffer]
        if ARENA_OF_ROLE.get(role, index) != index:
            message = f"{role} buffer {buffer} is in arena {name[index]}, not {name[ARENA_OF_ROLE[role]]}"
            yield Fault(rule="arena", what=message, buffer=buffer, arena=name[index])


def span(context: CheckContext) -> Iterator[Fault]:
    """Births and deaths are those of the order, mode and preset."""
    rows, spans = context.plan.buffers, context.spans
    for buffer, birth, death in zip(rows.id, rows.birth, rows.death, strict=True):
        expected = (spans.birth[buffer], spans.death[buffer])
        if (birth, death) != expected:
            message = f"buffer {buffer} lives from {expected[0]} to {expected[1]}, not {birth} to {death}"
            yield Fault(rule="span", what=message, buffer=buffer)


def takes_over(context: CheckContext) -> Iterator[Fault]:
    """A buffer takes over only what dies where it is born, at an op that may overwrite it, in the same place."""
    rows = context.plan.buffers
    for row, objection in context.takeovers:
        if objection:
            message = f"buffer {rows.id[row]} cannot take over buffer {rows.takes_over[row]}: {objection}"
            yield Fault(rule="takes-over", what=message, buffer=rows.id[row])


def padded_sizes(context: CheckContext) -> Iterator[Fault]:
    """A row's bytes are the buffer's, rounded up to the alignment."""
    rows = context.plan.buffers
    for buffer, actual, expected in zip(rows.id, rows.bytes, context.padded_bytes, strict=True):
        if actual != expected:
            yield Fault(rule="padding", what=f"buffer {buffer} takes {expected} bytes, not {actual}", buffer=buffer)


def alignment(context: CheckContext) -> Iterator[Fault]:
    """Alignments are powers of two, one in a slab, and every offset obeys its arena's."""
    rows, table = context.plan.buffers, context.plan.arenas
    for name, step in zip(table.name, table.alignment, strict=True):
        if step < 1 or step & (step - 1):
            yield Fault(rule="alignment", what=f"alignment {step} of {name} is no power of two", arena=name)
    for first, *others in context.slabs:
        for arena in others:
            if table.alignment[arena] != table.alignment[first]:
                message = f"{table.name[arena]} shares a slab with {table.name[first]}, but not its alignment"
                yield Fault(rule="alignment", what=message, arena=table.name[arena])
    for buffer, index, offset in zip(rows.id, rows.arena, rows.offset, strict=True):
        if offset % max(1, table.alignment[index]):
            message = f"offset {offset} of buffer {buffer} is no multiple of {table.alignment[index]}"
            yield Fault(rule="alignment", what=message, buffer=buffer, arena=table.name[index])


def overlap(context: CheckContext) -> Iterator[Fault]:
    """Two items alive at once share no byte, in one arena or in two of one slab."""
    rows = context.plan.buffers
    for slab in context.slabs:
        items = context.items_of(slab)
        problem, offset = _pack_problem(items), [rows.offset[item.rows[0]] for item in items]
        for older, newer in overlapping_pairs(problem, offset):
            low, high = max(offset[older], offset[newer]), min(offset[i] + items[i].bytes for i in (older, newer))
            item, name = items[newer], context.plan.arenas.name[rows.arena[items[newer].rows[0]]]
            message = f"buffers {items[older].id} and {item.id} share bytes {low} to {high} of {name} at {item.birth}"
            yield Fault(rule="overlap", what=message, buffer=item.id, arena=name, bytes=(low, high))


def _pack_problem(items: Sequence[Item]) -> PackProblem:
    return PackProblem(
        size=tuple(item.bytes for item in items),
        birth=tuple(item.birth for item in items),
        death=tuple(item.death for item in items),
        alignment=(1,) * len(items),
        fixed=(-1,) * len(items),
    )


def layout(context: CheckContext) -> Iterator[Fault]:
    """``sequential`` places items one after another by id, ``slots`` one slot after another."""
    rows, arenas = context.plan.buffers, context.plan.arenas
    for index, items in enumerate(context.items):
        # ``packed`` and ``joint`` prescribe no offsets: the list is empty.
        for item, offset in zip(items, _prescribed_offsets(context, index, items), strict=False):
            for row in item.rows:
                if rows.offset[row] != offset:
                    message = f"buffer {rows.id[row]} is at {rows.offset[row]} of {arenas.name[index]}, not {offset}"
                    yield Fault(rule="layout", what=message, buffer=rows.id[row], arena=arenas.name[index])


def _prescribed_offsets(context: CheckContext, arena: int, items: Sequence[Item]) -> list[int]:
    """Where the arena's layout puts each item; empty for layouts that are free to choose."""
    if context.plan.arenas.layout[arena] == "sequential":
        return list(accumulate((item.bytes for item in items), initial=0))[:-1]
    if context.plan.arenas.layout[arena] == "slots":
        start = list(accumulate(context.slot_sizes(arena), initial=0))
        return [start[context.plan.buffers.slot[item.rows[0]]] for item in items]
    return []
