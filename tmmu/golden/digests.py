"""Digests of a plan: three of what the specification fixes, one of everything."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

from blake3 import blake3

from tmmu.ir.encoding import cbor
from tmmu.ir.graph import Graph
from tmmu.ir.ids import BufferId
from tmmu.ir.plan import ArenaSpec, Placements, Plan, Slots
from tmmu.planner.arenas import NEVER_REUSED
from tmmu.planner.reference import Expected, arena_name, padded_size, simulate

KINDS: Final = ("spans", "slots", "addresses", "plan")
MAJOR: Final = frozenset({"spans", "slots", "addresses"})
"""Kinds that replays rely on: a change of them needs a major version, any other change of a plan a minor one."""
LENGTH: Final = 16
"""Bytes kept of a digest: 128 bits do not collide among a few thousand plans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Digests:
    """Hexadecimal digests: of births and deaths, of slots and takeovers, of addresses, and of the whole plan."""

    spans: str
    slots: str
    addresses: str
    plan: str


def digests_of(plan: Plan) -> Digests:
    """The four digests of a plan."""
    names, rows, slots = plan.arenas.name, plan.buffers, plan.slots
    return Digests(
        spans=_digest([rows.id, rows.birth, rows.death]),
        slots=_digest([rows.id, [names[a] for a in rows.arena], rows.slot, rows.takes_over, slots.bytes]),
        addresses=_digest([[names[a] for a in slots.arena], slots.slot, slots.address]),
        plan=plan.digest[:LENGTH].hex(),
    )


def _digest(columns: Sequence[object]) -> str:
    return blake3(cbor.encode(columns)).digest(length=LENGTH).hex()


def as_simulated(graph: Graph, plan: Plan, *, token: bytes, arenas: Sequence[ArenaSpec]) -> Plan:
    """The reference simulator's plan for the order and the offsets of ``plan``.

    Equal to ``plan`` where planner and simulator agree on all that the specification fixes.
    """
    expected = simulate(graph, plan.order, mode=plan.mode, preset=plan.preset, token=token, arenas=arenas)
    index = {name: number for number, name in enumerate(plan.arenas.name)}
    keys = sorted(expected.address, key=lambda key: (index[key[0]], key[1]))
    counts = [sum(name == key[0] for key in keys) for name in plan.arenas.name] if keys else [0] * len(index)
    return replace(
        plan,
        arenas=replace(plan.arenas, slots=tuple(counts)),
        slots=Slots(
            arena=tuple(index[name] for name, _ in keys),
            slot=tuple(number for _, number in keys),
            address=tuple(expected.address[key] for key in keys),
            bytes=tuple(expected.slot_bytes[key] for key in keys),
        ),
        buffers=_placements(graph, plan, arenas, expected, index),
        metrics=dict(plan.metrics) | _metrics(expected, len(keys)),
    )


def _placements(
    graph: Graph, plan: Plan, arenas: Sequence[ArenaSpec], expected: Expected, index: Mapping[str, int]
) -> Placements:
    ids = cast("list[BufferId]", sorted(expected.span))
    offset = dict(zip(plan.buffers.id, plan.buffers.offset, strict=True))
    return Placements(
        id=tuple(ids),
        arena=tuple(index[arena_name(graph, b)] for b in ids),
        slot=tuple(expected.slot[b][1] for b in ids),
        offset=tuple(offset.get(b, 0) for b in ids),
        bytes=tuple(padded_size(graph, arenas, b) for b in ids),
        birth=tuple(expected.span[b][0] for b in ids),
        death=tuple(expected.span[b][1] for b in ids),
        takes_over=cast("tuple[BufferId, ...]", tuple(expected.takes_over[b] for b in ids)),
    )


def _metrics(expected: Expected, slots: int) -> dict[str, int]:
    buffers = len(expected.span)
    never_reused = sum(name in NEVER_REUSED for name, _ in expected.address)
    return {
        "peak_logical_slots": slots,
        "max_live": never_reused + sum(most for name, most in expected.max_live.items() if name not in NEVER_REUSED),
        "memory_reuse_ppm": (buffers - slots) * 10**6 // buffers if buffers else 0,
    }
