"""Allocs and frees in order, with segments: a plan's stack where it lies, and eager's storages where torch puts them.

``PlannedRun`` and eager's run become one ``AllocationTrace``. At one position frees come before allocs, so that live
bytes after the allocs are those of the position. What is live during the last position is not freed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tmmu.eager.allocator import CachingAllocator
from tmmu.eager.allocator_config import SEGMENT_STEP_BYTES
from tmmu.export.buffer_rows import PlacedBuffer, buffer_rows, items_of, timeline_end
from tmmu.ir.graph import Graph
from tmmu.ir.lifetimes import EagerRun, Lifetimes
from tmmu.ir.plan import Plan, slabs_of

STACK: Final = "stack"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFrame:
    """One line of a stack as torch's tools print it: ``file:line:name``."""

    file: str
    line: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """``request`` bytes in a block of ``size`` at ``address``; ``frames``, innermost first, say whose they are."""

    address: int
    size: int
    request: int
    category: str
    frames: tuple[SourceFrame, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRange:
    """A range of ``size`` bytes at ``address``, taken of the device at ``position``."""

    address: int
    size: int
    position: int
    is_small: bool


@dataclass(frozen=True, slots=True)
class AllocationMoment:
    """An alloc or a free of the allocation in this row, at a position."""

    position: int
    is_alloc: bool
    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationTrace:
    """Segments in order of address, allocations, their moments in order, and the rows that are live at the end."""

    segments: tuple[SegmentRange, ...]
    allocations: tuple[Allocation, ...]
    moments: tuple[AllocationMoment, ...]
    live: tuple[int, ...]


def planned_allocations(plan: Plan, graph: Graph | None) -> AllocationTrace:
    """The stack of a plan: an allocation for each item, a segment for each slab. Addresses are offsets in the slab.

    The first slab begins at address 0, every other one at the next multiple of 2 MiB behind the slab before it.
    """
    rows, items = buffer_rows(plan, graph), [item for item in items_of(plan, segment=STACK) if item.bytes]
    segments, base_of = _slab_segments(plan)
    allocations = tuple(
        Allocation(
            address=base_of[plan.buffers.arena[item.rows[0]]] + plan.buffers.offset[item.rows[0]],
            size=item.bytes,
            request=item.bytes,
            category=rows[item.rows[0]].role or rows[item.rows[0]].arena,
            frames=tuple(_buffer_frame(rows[row]) for row in reversed(item.rows)),
        )
        for item in items
    )
    end, births, deaths = timeline_end(plan), [item.birth for item in items], [item.death for item in items]
    return AllocationTrace(
        segments=segments,
        allocations=allocations,
        moments=tuple(_moments(births, deaths, end)),
        live=tuple(row for row, death in enumerate(deaths) if death >= end),
    )


def _slab_segments(plan: Plan) -> tuple[tuple[SegmentRange, ...], dict[int, int]]:
    """The slabs of the stack as segments, and the address at which that of each arena begins."""
    arenas = plan.arenas
    segments: list[SegmentRange] = []
    base_of: dict[int, int] = {}
    address = 0
    for slab in slabs_of(arenas.segment, arenas.layout):
        size = max(arenas.peak[arena] for arena in slab)
        if arenas.segment[slab[0]] != STACK or not size:
            continue
        segments.append(SegmentRange(address=address, size=size, position=0, is_small=False))
        base_of |= dict.fromkeys(slab, address)
        address = -(-(address + size) // SEGMENT_STEP_BYTES) * SEGMENT_STEP_BYTES
    return tuple(segments), base_of


def _buffer_frame(row: PlacedBuffer) -> SourceFrame:
    names = (f"buffer {row.id}", row.name, row.role, row.maker, f"in {row.module}" if row.module else "")
    return _frame(row.source, " ".join(name for name in names if name))


def _frame(source: str, name: str) -> SourceFrame:
    """``source`` is ``file:line``, or anything else for a file without a line."""
    file, _, line = source.rpartition(":")
    is_line = file and line.isascii() and line.isdigit() and len(line) < 10
    return SourceFrame(file=file if is_line else source, line=int(line) if is_line else 0, name=name)


def _moments(births: Sequence[int], deaths: Sequence[int], end: int) -> Iterator[AllocationMoment]:
    """In order of position; at one, frees by birth and row, then allocs by row. Nothing is freed at the end."""
    rows = range(len(births))
    frees = [(deaths[row], 0, births[row], row) for row in rows if deaths[row] < end]
    allocs = [(births[row], 1, births[row], row) for row in rows]
    for position, is_alloc, _, row in sorted(frees + allocs):
        yield AllocationMoment(position, bool(is_alloc), row)


def eager_allocations(eager: EagerRun) -> AllocationTrace:
    """The storages of a step run as it is, in an empty caching allocator of torch's, by the model of it.

    Storages of no bytes have no block, and are left out.
    """
    table = eager.storages
    rows = [row for row in range(len(table)) if table.bytes[row]]
    births, deaths = [table.birth[row] for row in rows], [table.death[row] for row in rows]
    moments = tuple(_moments(births, deaths, eager.calls))
    device = _Device()
    address_of, size_of = _replay(moments, [table.bytes[row] for row in rows], device)
    allocations = tuple(
        Allocation(
            address=address_of[index],
            size=size_of.get(index, table.bytes[row]),
            request=table.bytes[row],
            category="",
            frames=tuple(_storage_frames(table, row)),
        )
        for index, row in enumerate(rows)
    )
    live = tuple(index for index, death in enumerate(deaths) if death >= eager.calls)
    return AllocationTrace(segments=tuple(device.segments), allocations=allocations, moments=moments, live=live)


class _Device:
    """Hands out addresses for segments, and notes them with the position at which they were taken."""

    def __init__(self) -> None:
        self.position = 0
        self.segments: list[SegmentRange] = []
        self._next = 0

    def address(self, size: int) -> int:
        """Where a segment of so many bytes begins: behind all before it."""
        address = self._next
        self.segments.append(
            SegmentRange(address=address, size=size, position=self.position, is_small=size <= SEGMENT_STEP_BYTES)
        )
        self._next = -(-(address + size) // SEGMENT_STEP_BYTES) * SEGMENT_STEP_BYTES
        return address


def _replay(
    moments: Sequence[AllocationMoment], sizes: Sequence[int], device: _Device
) -> tuple[dict[int, int], dict[int, int]]:
    """Per row its address, and the size of its block for those that are live at the end."""
    allocator = CachingAllocator(addresses=device.address)
    address_of: dict[int, int] = {}
    for moment in moments:
        device.position = moment.position
        if moment.is_alloc:
            address_of[moment.row] = allocator.allocate(moment.row, sizes[moment.row]) or 0
        else:
            allocator.free(moment.row)
    blocks = (block for segment in allocator.segment_states() for block in segment.blocks)
    return address_of, {block.storage: block.nbytes for block in blocks}


def _storage_frames(table: Lifetimes, row: int) -> Iterator[SourceFrame]:
    module = f" in {table.module[row]}" if table.module[row] else ""
    yield _frame(table.source[row], table.maker[row] + module)
    if table.holder[row]:
        yield _frame("", f"until it dies with {table.holder[row]}")
