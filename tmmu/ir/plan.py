"""The plan of one graph: order, spans, slots, addresses, offsets, as frozen columns (docs/spec/plan.md)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from blake3 import blake3

from tmmu.ir.encoding import cbor
from tmmu.ir.encoding.columns import column_map
from tmmu.ir.fit import FitRecord, fit_map
from tmmu.ir.ids import BufferId, OpId
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
    """What a caller asks of one arena: ``alignment``, ``page`` and ``capacity`` in bytes.

    ``capacity`` 0 is no limit; ``page`` 0 rounds nothing.
    """

    name: str
    segment: str
    layout: str
    alignment: int = 128
    page: int = 0
    capacity: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arenas:
    """Per arena, in a fixed order: its spec, its number of slots, and ``peak`` and ``bound`` in bytes.

    ``bound`` is the most padded bytes live at once; ``proven``: the slab is known to be minimal.
    """

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
    """Every slot, by (arena index, slot): its virtual address, and the most padded bytes that it ever holds."""

    arena: tuple[int, ...]
    slot: tuple[int, ...]
    address: tuple[int, ...]
    bytes: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.slot)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placements:
    """Every placed buffer, by id: a row per buffer.

    ``arena`` is an index, ``offset`` a byte of the arena's slab, ``bytes`` padded, ``[birth, death)`` in positions.
    ``takes_over`` is the buffer in whose bytes this one is computed, or its own id.
    """

    id: tuple[BufferId, ...]
    arena: tuple[int, ...]
    slot: tuple[int, ...]
    offset: tuple[int, ...]
    bytes: tuple[int, ...]
    birth: tuple[int, ...]
    death: tuple[int, ...]
    takes_over: tuple[BufferId, ...]

    def __len__(self) -> int:
        return len(self.id)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A plan of the graph with ``ir_hash``, in one mode, under the token with ``token_prefix``."""

    ir_hash: bytes
    mode: str
    preset: str
    token_prefix: bytes
    order: tuple[OpId, ...]
    arenas: Arenas
    slots: Slots
    buffers: Placements
    metrics: Mapping[str, int]
    ring: Ring | None = None
    """How the weights stream; ``None`` where all of them are resident."""
    fit: FitRecord | None = None
    """How the graph was made of its base; ``None`` for the graph of a model as it is."""

    @cached_property
    def digest(self) -> bytes:
        """32 bytes: BLAKE3 of the canonical encoding without ``digest``."""
        return blake3(cbor.encode(plan_map(self))).digest()


def slabs_of(segment: Sequence[str], layout: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Per slab, the indices of its arenas: the ``joint`` ones of a segment share one, every other arena has its own."""
    slabs: dict[tuple[str, int], list[int]] = {}
    for arena, (segment_name, layout_name) in enumerate(zip(segment, layout, strict=True)):
        slabs.setdefault((segment_name, -1 if layout_name == JOINT else arena), []).append(arena)
    return tuple(map(tuple, slabs.values()))


def segment_bytes(arenas: Arenas, segment: str) -> int:
    """Bytes that the slabs of a segment take: of each, the highest peak of its arenas."""
    slabs = slabs_of(arenas.segment, arenas.layout)
    return sum(max(arenas.peak[arena] for arena in slab) for slab in slabs if arenas.segment[slab[0]] == segment)


def plan_map(plan: Plan) -> dict[str, object]:
    """The map that ``digest`` covers: the file without that key."""
    optional: dict[str, object] = {} if plan.ring is None else {"ring": ring_map(plan.ring)}
    if plan.fit is not None:
        optional["fit"] = fit_map(plan.fit)
    return {
        "format": FORMAT,
        "version": VERSION,
        "spec": SPEC,
        "ir_hash": plan.ir_hash,
        "mode": plan.mode,
        "preset": plan.preset,
        "token_prefix": plan.token_prefix,
        "order": plan.order,
        "arenas": column_map(plan.arenas),
        "slots": column_map(plan.slots),
        "buffers": column_map(plan.buffers),
        "metrics": dict(plan.metrics),
    } | optional


def encode_plan(plan: Plan) -> bytes:
    """The bytes of a plan file."""
    return cbor.encode(plan_map(plan) | {"digest": plan.digest})
