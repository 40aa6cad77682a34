"""The plan: where everything goes. Columns, frozen, with a digest over its own canonical bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from blake3 import blake3

from tmmu.ir import cbor
from tmmu.ir.ring import Ring, ring_map

FORMAT: Final = "tmmu.plan"
VERSION: Final = 1
SPEC: Final = "UML_OS.TMMU.PrepareMemory_v2"

MODES: Final = ("inference", "forward", "backward")
PRESETS: Final = ("train_full", "inference", "remat_enabled")
JOINT: Final = "joint"
LAYOUTS: Final = (JOINT, "packed", "slots", "sequential")
SEGMENTS: Final = ("text", "data", "stack")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaSpec:
    """What a caller asks of one arena. ``capacity`` 0 is no limit; ``page`` 0 rounds nothing."""

    name: str
    segment: str
    layout: str
    alignment: int = 128
    page: int = 0
    capacity: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arenas:
    """Per arena, in a fixed order: its spec, its slots, and the bytes that it needs."""

    name: tuple[str, ...]
    segment: tuple[str, ...]
    alignment: tuple[int, ...]
    page: tuple[int, ...]
    capacity: tuple[int, ...]
    layout: tuple[str, ...]
    slots: tuple[int, ...]
    peak: tuple[int, ...]
    bound: tuple[int, ...]
    proven: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """Every slot, by (arena index, slot): its replayable address and the most padded bytes it ever holds."""

    arena: tuple[int, ...]
    slot: tuple[int, ...]
    address: tuple[int, ...]
    bytes: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.slot)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placements:
    """Every placed buffer, by id. ``bytes`` is padded; ``takes_over`` is a buffer id, or the buffer's own."""

    id: tuple[int, ...]
    arena: tuple[int, ...]
    slot: tuple[int, ...]
    offset: tuple[int, ...]
    bytes: tuple[int, ...]
    birth: tuple[int, ...]
    death: tuple[int, ...]
    takes_over: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.id)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One graph, in one mode, under one token: order, slots, addresses, offsets."""

    ir_hash: bytes
    mode: str
    preset: str
    token_prefix: bytes
    order: tuple[int, ...]
    arenas: Arenas
    slots: Slots
    buffers: Placements
    metrics: Mapping[str, int]
    ring: Ring | None = None
    """How the weights stream; without one all of them stay."""

    @cached_property
    def digest(self) -> bytes:
        """32 bytes: BLAKE3 of the canonical encoding without ``digest``."""
        return blake3(cbor.encode(plan_map(self))).digest()


def slabs_of(segment: Sequence[str], layout: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Arenas, by index, that share one slab of bytes: the ``joint`` ones of a segment, and each other one alone."""
    slabs: dict[tuple[str, int], list[int]] = {}
    for arena, (where, how) in enumerate(zip(segment, layout, strict=True)):
        slabs.setdefault((where, -1 if how == JOINT else arena), []).append(arena)
    return tuple(map(tuple, slabs.values()))


def segment_bytes(arenas: Arenas, segment: str) -> int:
    """What the slabs of a segment take: of each, the highest end of its arenas."""
    slabs = slabs_of(arenas.segment, arenas.layout)
    return sum(max(arenas.peak[arena] for arena in slab) for slab in slabs if arenas.segment[slab[0]] == segment)


def plan_map(plan: Plan) -> dict[str, object]:
    """The map that ``digest`` covers."""
    arenas, slots, buffers = plan.arenas, plan.slots, plan.buffers
    ring = {} if plan.ring is None else {"ring": ring_map(plan.ring)}
    return {
        "format": FORMAT,
        "version": VERSION,
        "spec": SPEC,
        "ir_hash": plan.ir_hash,
        "mode": plan.mode,
        "preset": plan.preset,
        "token_prefix": plan.token_prefix,
        "order": plan.order,
        "arenas": {name: getattr(arenas, name) for name in Arenas.__slots__},
        "slots": {name: getattr(slots, name) for name in Slots.__slots__},
        "buffers": {name: getattr(buffers, name) for name in Placements.__slots__},
        "metrics": dict(plan.metrics),
    } | ring


def encode_plan(plan: Plan) -> bytes:
    """The bytes of a plan file."""
    return cbor.encode(plan_map(plan) | {"digest": plan.digest})
