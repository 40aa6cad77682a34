"""Assembly of a plan: its arena, slot and buffer columns, from assigned slots and placed items."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from tmmu.ir.ids import BufferId
from tmmu.ir.plan import Arenas, ArenaSpec, Placements, Slots
from tmmu.ir.problem import Placement, Problem
from tmmu.planner.addresses import map_to_virtual_addresses
from tmmu.planner.liveness import LiveRanges
from tmmu.planner.slots import SlotAssignment


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferRows:
    """Placed buffers in id order: live range, arena (index), padded bytes, and the row whose bytes each takes over."""

    ranges: LiveRanges
    arena: tuple[int, ...]
    padded: tuple[int, ...]
    takes_over: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaTask:
    """One arena before its items have offsets.

    ``rows``: its buffers, as rows of ``BufferRows``; ``item``: per entry of ``rows``, its item in ``problem``.
    """

    spec: ArenaSpec
    rows: tuple[int, ...]
    item: tuple[int, ...]
    problem: Problem
    slots: SlotAssignment
    max_live: int


def arena_columns(tasks: Sequence[ArenaTask], placements: Sequence[Placement]) -> Arenas:
    """One row per arena."""
    specs = [task.spec for task in tasks]
    return Arenas(
        name=tuple(spec.name for spec in specs),
        segment=tuple(spec.segment for spec in specs),
        alignment=tuple(spec.alignment for spec in specs),
        page=tuple(spec.page for spec in specs),
        capacity=tuple(spec.capacity for spec in specs),
        layout=tuple(spec.layout for spec in specs),
        slots=tuple(len(task.slots.bytes) for task in tasks),
        peak=tuple(placement.peak for placement in placements),
        bound=tuple(placement.bound for placement in placements),
        proven=tuple(placement.proven for placement in placements),
    )


def slot_columns(token: bytes, arenas: Arenas, tasks: Sequence[ArenaTask]) -> Slots:
    """One row per slot, with its address."""
    return Slots(
        arena=tuple(index for index, count in enumerate(arenas.slots) for _ in range(count)),
        slot=tuple(slot for count in arenas.slots for slot in range(count)),
        address=map_to_virtual_addresses(token, arenas.name, arenas.slots, arenas.alignment),
        bytes=tuple(size for task in tasks for size in task.slots.bytes),
    )


def buffer_columns(rows: BufferRows, tasks: Sequence[ArenaTask], placements: Sequence[Placement]) -> Placements:
    """Every placed buffer, with the slot and offset of its item."""
    ranges, ids = rows.ranges, cast("tuple[BufferId, ...]", rows.ranges.id)
    slot, offset = [0] * len(ranges), [0] * len(ranges)
    for task, placement in zip(tasks, placements, strict=True):
        for row, item in zip(task.rows, task.item, strict=True):
            slot[row] = task.slots.slot[item]
            offset[row] = placement.offset[item]
    return Placements(
        id=ids,
        arena=rows.arena,
        slot=tuple(slot),
        offset=tuple(offset),
        bytes=rows.padded,
        birth=ranges.birth,
        death=ranges.death,
        takes_over=tuple(ids[row] for row in rows.takes_over),
    )
