"""Inductor's allocation tree: a pool is split in time and in space; a block goes into the first that takes it.

Blocks go in by decreasing size, then by decreasing life. A split in time holds parts that are never live together.
Where it is long enough and nothing in it lives with the block, the block joins it and what is over stays free;
where one part does, the block is handed down to it; where several do, it refuses. Where all refuse, the pool grows.
"""

import sys
from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np

from benchmarks.peers.gaps import by
from tmmu.planner.pack.instance import Column, PackingInstance


@dataclass(eq=False, slots=True)
class Spans:
    """Moments at which something lives: disjoint half-open spans, ascending."""

    birth: list[int] = field(default_factory=list)
    death: list[int] = field(default_factory=list)

    def meets(self, birth: int, death: int) -> bool:
        at = bisect_left(self.birth, death)
        return at > 0 and self.death[at - 1] > birth

    def add(self, birth: int, death: int) -> None:
        first, last = bisect_left(self.death, birth), bisect_left(self.birth, death + 1)
        if first < last:
            birth, death = min(birth, self.birth[first]), max(death, self.death[last - 1])
        self.birth[first:last] = [birth]
        self.death[first:last] = [death]

    def copy(self) -> "Spans":
        return Spans(list(self.birth), list(self.death))


@dataclass(eq=False, slots=True)
class Part:
    """Some bytes: one block's (``item``), free ones, parts one after another in time, or two side by side in space."""

    size: int
    live: Spans = field(default_factory=Spans)
    item: int = -1
    in_time: "list[Part] | None" = None
    in_space: "tuple[Part, Part] | None" = None


def allocation_tree(instance: PackingInstance) -> Column:
    """Offsets per item; one pool for all."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 10 * len(instance) + 1000))
    root = Part(0, in_time=[])
    for index in by(-instance.size, instance.birth - instance.death).tolist():
        birth, death = int(instance.birth[index]), int(instance.death[index])
        block = Part(int(instance.size[index]), Spans([birth], [death]), item=index)
        if not _give(root, block, last=True):
            grown = _beside(root, Part(block.size, block.live.copy(), in_time=[block]))
            grown.live.add(birth, death)
            root = Part(grown.size, grown.live.copy(), in_time=[grown])
    low = np.zeros(len(instance), dtype=instance.size.dtype)
    _finish(root, 0, low)
    return low


def _give(part: Part, block: Part, *, last: bool) -> bool:
    """Whether ``part`` took the block; only at the end of the pool (``last``) may it grow for it."""
    if part.in_space is not None:
        left, right = part.in_space
        taken = _give(left, block, last=False) or _give(right, block, last=last)
        part.size = left.size + right.size
    else:
        taken = part.in_time is not None and _give_in_time(part, block, last=last)
    if taken:
        part.live.add(block.live.birth[0], block.live.death[0])
    return taken


def _give_in_time(part: Part, block: Part, *, last: bool) -> bool:
    parts = part.in_time or []
    if not last and block.size > part.size:
        return False
    meeting = [one for one in parts if one.live.meets(block.live.birth[0], block.live.death[0])]
    if meeting:
        taken = len(meeting) == 1 and _give(meeting[0], block, last=last)
    else:
        slot = part.size
        kept = [one for one in parts if one.live.birth]
        if block.size > slot:
            kept = [_beside(Part(one.size, one.live.copy(), in_time=[one]), _free(block.size - slot)) for one in kept]
        fresh = Part(block.size, block.live.copy(), in_time=[block])
        part.in_time = [*kept, _beside(fresh, _free(slot - block.size)) if slot > block.size else block]
        taken = True
    part.size = max(one.size for one in part.in_time or parts)
    return taken


def _free(size: int) -> Part:
    return Part(size, in_time=[Part(size)])


def _beside(left: Part, right: Part) -> Part:
    return Part(left.size + right.size, left.live.copy(), in_space=(left, right))


def _finish(part: Part, offset: int, low: Column) -> None:
    """Write the offset of every block in ``part``, which begins at ``offset``."""
    if part.item >= 0:
        low[part.item] = offset
    for one in part.in_time or ():
        _finish(one, offset, low)
    if part.in_space is not None:
        left, right = part.in_space
        _finish(left, offset, low)
        _finish(right, offset + left.size, low)
