"""The first buffer at which two plans of one graph part, said in words."""

from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import Final

from tmmu.codec.text import print_ring
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan, plan_map
from tmmu.ir.ring import Ring


def first_difference(graph: Graph, kind: str, before: Plan, after: Plan) -> str:
    """Which buffer is the first whose ``kind`` (one of ``KINDS``) differs, what it is, and what it was."""
    told = _TOLD[kind]
    old, new = told(before), told(after)
    for buffer in sorted(old.keys() | new.keys()):
        if old.get(buffer) != new.get(buffer):
            return f"{_named(graph, buffer)} {new.get(buffer, 'is not placed')}, {_was(old.get(buffer, 'not placed'))}"
    return _first_field(before, after)


def _named(graph: Graph, buffer: int) -> str:
    """The buffer's id, and its name where the graph has one for it."""
    name = graph.notes.buffers[buffer] if buffer < len(graph.buffers) else ""
    return f"buffer {buffer} ({name})" if name else f"buffer {buffer}"


def _was(told: str) -> str:
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


_TOLD: Final[Mapping[str, Callable[[Plan], Mapping[int, str]]]] = {
    "spans": _spans,
    "slots": _slots,
    "addresses": _addresses,
    "plan": _offsets,
}


def _first_field(before: Plan, after: Plan) -> str:
    """The first key of the plan's map whose content differs; of a ring, the first line of its print."""
    old, new = plan_map(before), plan_map(after)
    for key in sorted(old.keys() | new.keys()):
        one, other = old.get(key), new.get(key)
        if one == other:
            continue
        if key == "ring":
            return _ring_line(before.ring, after.ring)
        if isinstance(one, dict) and isinstance(other, dict):
            inner = next(k for k in sorted(one.keys() | other.keys()) if one.get(k) != other.get(k))
            return f"{key}.{inner} is {other.get(inner)!s:.80}, was {one.get(inner)!s:.80}"
        return f"{key} is {other!s:.80}, was {one!s:.80}"
    return "nothing that a plan file holds"


def _ring_line(before: Ring | None, after: Ring | None) -> str:
    """What the first line is and was that only one of two rings has in its place."""
    old, new = (print_ring(ring).splitlines() if ring else [] for ring in (before, after))
    rows = zip_longest(old, new, fillvalue="not there")
    was, now = next((was, now) for was, now in rows if was != now)
    return f"the ring's {now:.120}, was {was:.120}"
