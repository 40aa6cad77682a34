"""Schedules written down by address, and the loop driven over them without a model."""

from collections.abc import Sequence
from itertools import pairwise

from tmmu.ir.ring import Block, Copy, Ring, Visit, When
from tmmu.runtime.device.interface import Device
from tmmu.runtime.ring.loop import Loop

Placed = tuple[int, int]
"""A block's address and the end of its bytes."""


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


def _when(at: int, n: int) -> When:
    return When(visit=at % n, lag=int(at < 0))


def fits(places: Sequence[Placed], resident: Sequence[int]) -> bool:
    """Whether nothing lands on what stays."""
    return not any(
        places[stays][0] < end and begin < places[stays][1]
        for stays in resident
        for n, (begin, end) in enumerate(places)
        if n != stays
    )


def drive(loop: Loop, passes: int, *, cost: int = 0, until: int | None = None) -> None:
    """The loop over all visits so often, a work that reads the block in each; the last pass up to visit ``until``."""
    for turn in range(passes):
        count = len(loop.ring.visits) if until is None or turn + 1 < passes else until
        for visit in range(count):
            loop.enter(visit)
            loop.device.submit(loop.device.caller(), loop.read(visit, name=f"pass {turn} visit {visit}", cost=cost))
            loop.leave(visit)


def ordered(numbers: Sequence[int]) -> bool:
    return all(one <= other for one, other in pairwise(numbers))


__all__ = ["Device", "drive", "fits", "ordered", "ring_at"]
