"""Packing instances: numpy columns in birth order, with the items that overlap an item in time found quickly.

Items are cut into blocks of about the usual live set. Invariant: an item that overlaps item ``i`` in time was either
born before the block of ``i`` and is live at the block's first birth (``carry``), or lies in the contiguous range from
the start of the block to ``stop[i]``. So a lookup costs O(live), and the carried lists take O(items) in all.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tmmu.ir.problem import Problem

Column: TypeAlias = npt.NDArray[Any]
"""``int64[n]``, or Python integers where the sum of sizes leaves 62 bits."""
Index: TypeAlias = npt.NDArray[np.int64]

WORD_LIMIT: Final = 2**62
MAX_CACHED_OVERLAPS: Final = 8_000_000
"""Overlapping pairs kept in memory between two packings: 64 MB of int64."""


@dataclass(frozen=True, kw_only=True)
class PackingInstance:
    """Items of 1 byte or more, sorted by (birth, id); ``item`` is their index in the problem.

    Items from ``stop[i]`` on are born at or after the death of item i; ``carry[j]``: items before block j that are live
    at its first birth. ``bound``: most live bytes; ``max_offset`` is above every offset.
    """

    item: Index
    size: Column
    birth: Index
    death: Index
    stop: Index
    block: int
    carry: tuple[Index, ...]
    bound: int
    max_offset: int

    def __len__(self) -> int:
        return len(self.item)

    @cached_property
    def overlaps(self) -> int:
        """Ordered pairs of items that are live at once, each item paired with itself too."""
        ended = np.searchsorted(np.sort(self.death), self.birth, side="right")
        return int((self.stop - ended).sum())

    @cached_property
    def cached_neighbors(self) -> tuple[Index, ...]:
        """Per item its ``neighbors``; empty where they exceed ``MAX_CACHED_OVERLAPS``."""
        if self.overlaps > MAX_CACHED_OVERLAPS:
            return ()
        return tuple(self.neighbors(index) for index in range(len(self)))

    def neighbors(self, index: int) -> Index:
        """Items live at some time when item ``index`` is, itself included."""
        born = self.birth[index]
        block = index // self.block
        start, stop = block * self.block, int(self.stop[index])
        carried = self.carry[block]
        live_in_block = (self.death[start:stop] > born).nonzero()[0] + start
        return np.concatenate([carried[self.death[carried] > born], live_in_block])


def prepare_instance(problem: Problem, bound: int) -> PackingInstance:
    """The instance of ``problem``, whose most live bytes are ``bound``. O(n log n) time; O(n + live) space."""
    total = sum(problem.size)
    wide = total >= WORD_LIMIT
    all_sizes = np.array(problem.size, dtype=object if wide else np.int64)
    birth = np.array(problem.birth, dtype=np.int64)
    death = np.array(problem.death, dtype=np.int64)
    keep = np.flatnonzero(all_sizes > 0)
    item = keep[np.argsort(birth[keep], kind="stable")]
    birth, death = birth[item], death[item]
    block = _block_width(birth, death)
    return PackingInstance(
        item=item,
        size=all_sizes[item],
        birth=birth,
        death=death,
        stop=np.searchsorted(birth, death, side="left"),
        block=block,
        carry=_live_before_blocks(birth, death, block),
        bound=bound,
        max_offset=total * 2 + 1 if wide else WORD_LIMIT,
    )


def _live_counts(birth: Index, death: Index) -> Index:
    """Per item in birth order, the items live at its birth."""
    ended = np.searchsorted(np.sort(death), birth, side="right")
    started = np.searchsorted(birth, birth, side="right")
    return started - ended


def _block_width(birth: Index, death: Index) -> int:
    """The mean number of live items, 32 at least: then carried lists take O(items) in all."""
    if not len(birth):
        return 1
    return max(32, int(_live_counts(birth, death).mean()))


def _live_before_blocks(birth: Index, death: Index, block: int) -> tuple[Index, ...]:
    carries: list[Index] = []
    live = np.empty(0, dtype=np.int64)
    for start in range(0, len(birth), block):
        live = live[death[live] > birth[start]]
        carries.append(live)
        born = np.arange(start, min(start + block, len(birth)), dtype=np.int64)
        live = np.concatenate([live, born])
    return tuple(carries)
