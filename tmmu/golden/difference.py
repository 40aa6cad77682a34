"""The first buffer at which two plans of one graph differ, as text."""

from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import Final

from tmmu.codec.text import print_ring
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan, plan_map
from tmmu.ir.ring import Ring


def first_difference(graph: Graph, kind: str, before: Plan, after: Plan) -> str:
    """The first buffer by id whose ``kind`` (one of ``KINDS``) differs, with its new and old contents."""
    describe = _DESCRIBE[kind]
    old, new = describe(before), describe(after)
    for buffer in sorted(old.keys() | new.keys()):
        if old.get(buffer) != new.get(buffer):
            was = _describe_before(old.get(buffer, "not placed"))
            return f"{_buffer_name(graph, buffer)} {new.get(buffer, 'is not placed')}, {was}"
    return _first_field(before, after)


def _buffer_name(graph: Graph, buffer: int) -> str:
    """The buffer's id, and its name where the graph has one for it."""
    name = graph.notes.buffers[buffer] if buffer < len(graph.buffers) else ""
    return f"buffer {buffer} ({name})" if name else f"buffer {buffer}"


def _describe_before(told: str) -> str:
    return "was " + told.removeprefix("is ").removeprefix("has ")


def _spans(plan: Plan) -> Mapping[int, str]:
    rows = plan.buffers
    return {b: f"is live in [{rows.birth[i]}, {rows.death[i]})" for i, b in enumerate(rows.id)}


def _slots(plan: Plan) -> Mapping[int, str]:
    rows, table, names = plan.buffers, plan.slots, plan.arenas.name
    size = {(a, s): n for a, s, n in zip(table.arena, table.slot, table.bytes, strict=True)}
    return {
        b: f"is in slot {rows.slot[i]} of {names[rows.arena[i]]}, of {size[rows.arena[i], rows.slot[i]]} bytes"
        + (f", in place of buffer {rows.takes_over[i]}" if rows.takes_over[i] != b else "")
        for i, b in enumerate(rows.id)
    }


def _addresses(plan: Plan) -> Mapping[int, str]:
    rows, table = plan.buffers, plan.slots
    address = {(a, s): x for a, s, x in zip(table.arena, table.slot, table.address, strict=True)}
    return {b: f"has address {address[rows.arena[i], rows.slot[i]]:#018x}" for i, b in enumerate(rows.id)}


def _offsets(plan: Plan) -> Mapping[int, str]:
    rows, names = plan.buffers, plan.arenas.name
    return {
        b: f"has {rows.bytes[i]} bytes at offset {rows.offset[i]} of {names[rows.arena[i]]}"
        for i, b in enumerate(rows.id)
    }


_DESCRIBE: Final[Mapping[str, Callable[[Plan], Mapping[int, str]]]] = {
    "spans": _spans,
    "slots": _slots,
    "addresses": _addresses,
    "plan": _offsets,
}


def _first_field(before: Plan, after: Plan) -> str:
    """The first key of the plan's map whose content differs; of a ring, the first line of its print."""
    old, new = plan_map(before), plan_map(after)
    for key in sorted(old.keys() | new.keys()):
        old_field, new_field = old.get(key), new.get(key)
        if old_field == new_field:
            continue
        if key == "ring":
            return _ring_line(before.ring, after.ring)
        if isinstance(old_field, dict) and isinstance(new_field, dict):
            inner = next(k for k in sorted(old_field.keys() | new_field.keys()) if old_field.get(k) != new_field.get(k))
            return f"{key}.{inner} is {new_field.get(inner)!s:.80}, was {old_field.get(inner)!s:.80}"
        return f"{key} is {new_field!s:.80}, was {old_field!s:.80}"
    return "nothing that a plan file holds"


def _ring_line(before: Ring | None, after: Ring | None) -> str:
    """The first line at which the prints of two rings differ."""
    old, new = (print_ring(ring).splitlines() if ring else [] for ring in (before, after))
    rows = zip_longest(old, new, fillvalue="not there")
    was, now = next((was, now) for was, now in rows if was != now)
    return f"the ring's {now:.120}, was {was:.120}"
