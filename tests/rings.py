"""Schedules written down by address, and the loop driven over them without a model."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tmmu.ir.ring import Block, Copy, Ring, Visit, VisitRef
from tmmu.runtime.device.explorer import ExplorerDevice
from tmmu.runtime.device.interface import Device
from tmmu.runtime.ring.fences import Fence
from tmmu.runtime.ring.loop import PlaceholderBlocks, StreamingLoop

Placed = tuple[int, int]
"""A block's address and the end of its bytes."""
Point = tuple[Fence, int, int]
"""A fence at a visit in a pass."""


def ring_at(
    places: Sequence[Placed],
    *,
    order: Sequence[int] = (),
    depth: int = 99,
    resident: Sequence[int] = (),
    ahead: int = 0,
) -> Ring:
    """The sound schedule of these blocks in this order, copies as early as their readers and ``depth`` allow.

    With ``ahead`` every copy may be issued just so many visits before its own, whatever it overwrites: what a loop has
    to hold back by itself.
    """
    blocks = tuple(
        Block(name=f"layer {n}", bytes=end - begin, resident=n in resident, address=begin, members=())
        for n, (begin, end) in enumerate(places)
    )
    order = order or range(len(places))
    visits = tuple(Visit(block=block, first=at, last=at) for at, block in enumerate(order))
    copies = tuple(
        _copy(places, order, at, ahead or depth, held=not ahead)
        for at, block in enumerate(order)
        if block not in resident
    )
    end = max((end for _, end in places), default=0)
    return Ring(policy="cyclic", capacity=end, alignment=1, depth=depth, blocks=blocks, visits=visits, copies=copies)


def _copy(places: Sequence[Placed], order: Sequence[int], at: int, depth: int, *, held: bool) -> Copy:
    n = len(order)
    begin, end = places[order[at]]
    before = range(at - 1, at - n - 1, -1)
    waits = [j for j in before if places[order[j]][0] < end and begin < places[order[j]][1]]
    start = max(waits[0] + 1 if held else at - n + 1, at - depth)
    return Copy(visit=at, start=_when(start, n), waits=tuple(_when(j, n) for j in waits))


def _when(at: int, n: int) -> VisitRef:
    return VisitRef(visit=at % n, lag=int(at < 0))


def in_slots(slots: Sequence[int]) -> list[Placed]:
    """Blocks of one byte, each in the slot that is named."""
    return [(slot, slot + 1) for slot in slots]


def assignments(layers: int, slots: int) -> Iterator[tuple[int, ...]]:
    """Every way to give layers at most so many slots, once for all ways to number the slots."""

    def longer(prefix: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(prefix) == layers:
            yield prefix
            return
        for slot in range(min(max(prefix, default=-1) + 2, slots)):
            yield from longer((*prefix, slot))

    return longer(())


def drive(
    loop: StreamingLoop, passes: int, *, cost: int = 0, before: Callable[[int, int], object] | None = None
) -> None:
    """The loop over all visits so often, with a work in each that reads the whole block."""
    for turn in range(passes):
        for visit in range(len(loop.ring.visits)):
            if before is not None:
                before(turn, visit)
            loop.enter(visit)
            compute(loop, turn, visit, cost=cost)
            loop.leave(visit)


def compute(loop: StreamingLoop, turn: int, visit: int, *, cost: int = 0) -> None:
    """What the caller does with the block of a visit that is entered."""
    loop.device.submit(loop.device.caller_stream(), loop.read_task(visit, name=f"pass {turn} visit {visit}", cost=cost))


def without(*points: Point) -> Callable[[Fence, int, int], bool]:
    """All fences stand but these."""
    return lambda fence, visit, turn: (fence, visit, turn) not in points


def lacking(*fences: Fence) -> Callable[[Fence, int, int], bool]:
    """All fences stand but those of these kinds, which stand nowhere."""
    return lambda fence, visit, turn: fence not in fences


def points_of(ring: Ring, passes: int, **options: Any) -> list[Point]:
    """Every point at which the loop asks for a fence on its way."""
    met: dict[Point, None] = {}

    def spy(fence: Fence, visit: int, turn: int) -> bool:
        met[fence, visit, turn] = None
        return True

    issued(ring, passes, fence_filter=spy, **options)
    return list(met)


def issued(ring: Ring, passes: int = 3, *, piece: int = 0, device: Device | None = None, **options: Any) -> Any:
    """A device that was given so many passes of a ring, an explorer unless it is named."""
    device = device or ExplorerDevice()
    before = options.pop("before", None)
    cost = options.pop("cost", 0)
    loop = StreamingLoop(device, ring, PlaceholderBlocks(ring, piece), **options)
    drive(loop, passes, cost=cost, before=None if before is None else lambda turn, visit: before(loop, turn, visit))
    return device
