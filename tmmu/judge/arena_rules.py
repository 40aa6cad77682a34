"""Rules of the table ``arenas``, and of the metrics: peak, bound, capacity, as docs/spec/plan.md defines them."""

from collections.abc import Iterator, Sequence
from typing import Final

from tmmu.ir.fault import Fault
from tmmu.judge.context import ARENA_OF_ROLE, NEVER_REUSED, CheckContext
from tmmu.judge.packing import most_live

PPM: Final = 1_000_000


def peak(context: CheckContext) -> Iterator[Fault]:
    """The peak is the end of the last byte placed; under ``slots``, of the last slot."""
    arenas = context.plan.arenas
    for index, (name, actual) in enumerate(zip(arenas.name, arenas.peak, strict=True)):
        if actual != (expected := _peak(context, index)):
            yield Fault(rule="peak", what=f"the peak of {name} is {expected}, not {actual}", arena=name)


def _peak(context: CheckContext, arena: int) -> int:
    if context.plan.arenas.layout[arena] == "slots":
        return sum(context.slot_sizes(arena))
    offset, rows = context.plan.buffers.offset, (row for item in context.items[arena] for row in item.rows)
    return max((offset[row] + context.padded_bytes[row] for row in rows), default=0)


def bound(context: CheckContext) -> Iterator[Fault]:
    """The bound is the most padded bytes alive at once; all of them in arenas that reuse nothing."""
    arenas = context.plan.arenas
    for index, (name, actual) in enumerate(zip(arenas.name, arenas.bound, strict=True)):
        if actual != (expected := _bound(context, (index,))):
            yield Fault(rule="bound", what=f"the bound of {name} is {expected}, not {actual}", arena=name)


def _bound(context: CheckContext, slab: Sequence[int]) -> int:
    items = context.items_of(slab)
    if slab[0] in NEVER_REUSED:
        return sum(item.bytes for item in items)
    return most_live((item.birth, item.death, item.bytes) for item in items)


def proven_peaks(context: CheckContext) -> Iterator[Fault]:
    """A peak is called minimal only where its slab's equals the slab's bound."""
    table = context.plan.arenas
    for slab in context.slabs:
        top, floor = max(table.peak[arena] for arena in slab), _bound(context, slab)
        for arena in slab:
            if table.proven[arena] and top != floor:
                name = table.name[arena]
                yield Fault(rule="proven", what=f"{name} claims a minimal peak of {top}, above {floor}", arena=name)


def page(context: CheckContext) -> Iterator[Fault]:
    """A page is a power of two, or 0: none."""
    table = context.plan.arenas
    for name, step in zip(table.name, table.page, strict=True):
        if step & (step - 1):
            yield Fault(rule="page", what=f"page {step} of {name} is no power of two", arena=name)


def capacity(context: CheckContext) -> Iterator[Fault]:
    """No arena needs more than it may have."""
    table = context.plan.arenas
    for name, top, limit in zip(table.name, table.peak, table.capacity, strict=True):
        if limit and top > limit:
            yield Fault(rule="capacity", what=f"{name} needs {top} bytes of {limit}", arena=name)


def metrics(context: CheckContext) -> Iterator[Fault]:
    """The metrics are those of the tables, no more and no fewer."""
    expected, actual = _metrics(context), context.plan.metrics
    for name in sorted(expected.keys() | actual.keys()):
        if expected.get(name) != actual.get(name):
            yield Fault(rule="metrics", what=f"metric {name} is {expected.get(name)}, not {actual.get(name)}")


def _metrics(context: CheckContext) -> dict[str, int]:
    count, slots = len(context.plan.buffers), sum(context.plan.arenas.slots)
    unpadded = sum(context.graph.buffers.bytes[buffer] for buffer in context.plan.buffers.id)
    padded = sum(context.padded_bytes)
    stack = [slab for slab in context.slabs if context.plan.arenas.segment[slab[0]] == "stack"]
    return {
        "peak_logical_slots": slots,
        "max_live": sum(context.slot_counts),
        "memory_reuse_ppm": (count - slots) * PPM // max(count, 1),
        "activation_retention_ppm": _retention_ppm(context),
        "internal_fragmentation_ppm": (padded - unpadded) * PPM // max(padded, 1),
        "peak_bytes.stack": sum(max(_peak(context, arena) for arena in slab) for slab in stack),
        "bound_bytes.stack": sum(_bound(context, slab) for slab in stack),
    } | {f"peak_bytes.{name}": _peak(context, index) for index, name in enumerate(context.plan.arenas.name)}


def _retention_ppm(context: CheckContext) -> int:
    """Of the bytes of activations born in the forward part, the share still alive at its end."""
    forward_end = sum(context.graph.ops.stage[op] == "forward" for op in context.plan.order)
    born = retained = 0
    for row, buffer in enumerate(context.plan.buffers.id):
        is_activation = context.plan.buffers.arena[row] == ARENA_OF_ROLE["activation"]
        if is_activation and context.spans.birth[buffer] < forward_end:
            born += context.padded_bytes[row]
            retained += context.padded_bytes[row] if context.spans.death[buffer] >= forward_end else 0
    return retained * PPM // max(born, 1)
