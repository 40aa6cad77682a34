"""Inductor's allocation tree: a pool is split in time and in space, and a block goes into the first part that fits.

Blocks are inserted by decreasing size, then by decreasing life. A split in time holds parts that are never live
together. A block joins it if it is large enough and no part is live with the block (the excess stays free); with one
such part the block is inserted there; with several it does not fit. Where no part fits, the pool grows.
"""

import sys
from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np

from benchmarks.peers.gaps import sort_by
from tmmu.planner.pack.instance import Column, PackingInstance


@dataclass(eq=False, slots=True)
class LiveSpans:
    """Positions at which a part holds live bytes: disjoint half-open spans, ascending."""

    birth: list[int] = field(default_factory=list)
    death: list[int] = field(default_factory=list)

    def overlaps(self, birth: int, death: int) -> bool:
        index = bisect_left(self.birth, death)
        return index > 0 and self.death[index - 1] > birth

    def add(self, birth: int, death: int) -> None:
        first, last = bisect_left(self.death, birth), bisect_left(self.birth, death + 1)
        if first < last:
            birth, death = min(birth, self.birth[first]), max(death, self.death[last - 1])
        self.birth[first:last] = [birth]
        self.death[first:last] = [death]

    def copy(self) -> "LiveSpans":
        return LiveSpans(list(self.birth), list(self.death))


@dataclass(eq=False, slots=True)
class PoolPart:
    """A range of bytes: one block (``item``), free, split in time, or split in two in space."""

    size: int
    live: LiveSpans = field(default_factory=LiveSpans)
    item: int = -1
    in_time: "list[PoolPart] | None" = None
    in_space: "tuple[PoolPart, PoolPart] | None" = None


def allocation_tree(instance: PackingInstance) -> Column:
    """Offsets per item, in one pool."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 10 * len(instance) + 1000))
    root = PoolPart(0, in_time=[])
    for index in sort_by(-instance.size, instance.birth - instance.death).tolist():
        birth, death = int(instance.birth[index]), int(instance.death[index])
        block = PoolPart(int(instance.size[index]), LiveSpans([birth], [death]), item=index)
        if not _insert(root, block, last=True):
            grown = _join_in_space(root, PoolPart(block.size, block.live.copy(), in_time=[block]))
            grown.live.add(birth, death)
            root = PoolPart(grown.size, grown.live.copy(), in_time=[grown])
    low = np.zeros(len(instance), dtype=instance.size.dtype)
    _write_offsets(root, 0, low)
    return low


def _insert(part: PoolPart, block: PoolPart, *, last: bool) -> bool:
    """Insert the block, if it fits; only the end of the pool (``last``) may grow for it."""
    if part.in_space is not None:
        left, right = part.in_space
        taken = _insert(left, block, last=False) or _insert(right, block, last=last)
        part.size = left.size + right.size
    else:
        taken = part.in_time is not None and _insert_in_time(part, block, last=last)
    if taken:
        part.live.add(block.live.birth[0], block.live.death[0])
    return taken


def _insert_in_time(part: PoolPart, block: PoolPart, *, last: bool) -> bool:
    parts = part.in_time or []
    if not last and block.size > part.size:
        return False
    overlapping = [child for child in parts if child.live.overlaps(block.live.birth[0], block.live.death[0])]
    if overlapping:
        taken = len(overlapping) == 1 and _insert(overlapping[0], block, last=last)
    else:
        children = [child for child in parts if child.live.birth]
        excess = part.size - block.size
        if excess < 0:
            children = [_pad(child, -excess) for child in children]
        part.in_time = [*children, _pad(block, excess) if excess > 0 else block]
        taken = True
    part.size = max(child.size for child in part.in_time or parts)
    return taken


def _pad(part: PoolPart, size: int) -> PoolPart:
    """``part`` in a split in time of its own, with ``size`` free bytes above it."""
    free = PoolPart(size, in_time=[PoolPart(size)])
    return _join_in_space(PoolPart(part.size, part.live.copy(), in_time=[part]), free)


def _join_in_space(left: PoolPart, right: PoolPart) -> PoolPart:
    return PoolPart(left.size + right.size, left.live.copy(), in_space=(left, right))


def _write_offsets(part: PoolPart, offset: int, low: Column) -> None:
    """Write the offset of every block in ``part``, which begins at ``offset``."""
    if part.item >= 0:
        low[part.item] = offset
    for child in part.in_time or ():
        _write_offsets(child, offset, low)
    if part.in_space is not None:
        left, right = part.in_space
        _write_offsets(left, offset, low)
        _write_offsets(right, offset + left.size, low)
