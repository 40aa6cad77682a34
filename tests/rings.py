"""Rings with given addresses, and the streaming loop driven over them without a model."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tmmu.ir.ring import Block, Copy, Ring, Visit, VisitRef
from tmmu.runtime.device.explorer import ExplorerDevice
from tmmu.runtime.device.interface import Device
from tmmu.runtime.ring.fences import Fence, FenceFilter
from tmmu.runtime.ring.loop import PlaceholderBlocks, StreamingLoop

Span = tuple[int, int]
"""A block's address and the end of its bytes."""
FencePoint = tuple[Fence, int, int]
"""A fence at a visit in a pass."""


def ring_at(
    spans: Sequence[Span],
    *,
    order: Sequence[int] = (),
    depth: int = 99,
    resident: Sequence[int] = (),
    early: int = 0,
) -> Ring:
    """The sound schedule of blocks at these addresses, visited in this order, copies as early as ``depth`` allows.

    With ``early`` every copy may be issued that many visits before its own, whatever it overwrites: then the loop must
    hold it back.
    """
    blocks = tuple(
        Block(name=f"layer {n}", bytes=end - begin, resident=n in resident, address=begin, members=())
        for n, (begin, end) in enumerate(spans)
    )
    order = order or range(len(spans))
    visits = tuple(Visit(block=block, first=position, last=position) for position, block in enumerate(order))
    copies = tuple(
        _copy(spans, order, position, early or depth, after_readers=not early)
        for position, block in enumerate(order)
        if block not in resident
    )
    end = max((end for _, end in spans), default=0)
    return Ring(policy="cyclic", capacity=end, alignment=1, depth=depth, blocks=blocks, visits=visits, copies=copies)


def _copy(spans: Sequence[Span], order: Sequence[int], position: int, depth: int, *, after_readers: bool) -> Copy:
    n = len(order)
    begin, end = spans[order[position]]
    before = range(position - 1, position - n - 1, -1)
    waits = [j for j in before if spans[order[j]][0] < end and begin < spans[order[j]][1]]
    start = max(waits[0] + 1 if after_readers else position - n + 1, position - depth)
    return Copy(visit=position, start=_visit_ref(start, n), waits=tuple(_visit_ref(j, n) for j in waits))


def _visit_ref(position: int, n: int) -> VisitRef:
    return VisitRef(visit=position % n, lag=int(position < 0))


def slot_spans(slots: Sequence[int]) -> list[Span]:
    """Blocks of one byte, each in the given slot."""
    return [(slot, slot + 1) for slot in slots]


def slot_assignments(layers: int, slots: int) -> Iterator[tuple[int, ...]]:
    """Every way to give layers at most ``slots`` slots, once for all ways to number the slots."""

    def extend(prefix: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(prefix) == layers:
            yield prefix
            return
        for slot in range(min(max(prefix, default=-1) + 2, slots)):
            yield from extend((*prefix, slot))

    return extend(())


def run_passes(
    loop: StreamingLoop, passes: int, *, cost: int = 0, before: Callable[[int, int], object] | None = None
) -> None:
    """Enters and leaves all visits ``passes`` times, with a task in each that reads the whole block."""
    for pass_index in range(passes):
        for visit in range(len(loop.ring.visits)):
            if before is not None:
                before(pass_index, visit)
            loop.enter(visit)
            submit_read(loop, pass_index, visit, cost=cost)
            loop.leave(visit)


def submit_read(loop: StreamingLoop, pass_index: int, visit: int, *, cost: int = 0) -> None:
    """The caller's task that reads the block of a visit that is entered."""
    read = loop.read_task(visit, name=f"pass {pass_index} visit {visit}", cost=cost)
    loop.device.submit(loop.device.caller_stream(), read)


def without(*removed: Fence | FencePoint) -> FenceFilter:
    """All fences but those of these kinds, or these single ones."""
    return lambda fence, visit, pass_index: fence not in removed and (fence, visit, pass_index) not in removed


def fence_points(ring: Ring, passes: int, **options: Any) -> list[FencePoint]:
    """Every single fence that the loop asks for."""
    points: dict[FencePoint, None] = {}

    def spy(fence: Fence, visit: int, pass_index: int) -> bool:
        points[fence, visit, pass_index] = None
        return True

    issue_passes(ring, passes, fence_filter=spy, **options)
    return list(points)


def issue_passes(ring: Ring, passes: int = 3, *, piece: int = 0, device: Device | None = None, **options: Any) -> Any:
    """A device that was given the tasks of so many passes of a ring; by default an explorer."""
    device = device or ExplorerDevice()
    before, cost = options.pop("before", None), options.pop("cost", 0)
    loop = StreamingLoop(device, ring, PlaceholderBlocks(ring, piece), **options)
    run_passes(loop, passes, cost=cost, before=None if before is None else lambda *visit: before(loop, *visit))
    return device
