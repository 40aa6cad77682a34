"""Blocks of the caching allocator's model: neighbours in a segment, and the free ones in order of size and address."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

_RUN: Final = 512
"""Entries of a run of ``BlockOrder`` before it is cut in two are at most twice as many."""


@dataclass(slots=True, eq=False, kw_only=True)
class AllocatorBlock:
    """A piece of a segment: free, allocated, or (of an expandable segment) not mapped.

    ``previous`` and ``following`` are its neighbours in the segment; a segment that is one block has neither.
    """

    address: int
    size: int
    pool: "BlockPool"
    page: int = 0
    """Bytes of the pages of its expandable segment; 0 in any other segment."""
    segment: int = 0
    """First address of its expandable segment."""
    mapped: bool = True
    allocated: bool = False
    request: int = 0
    """Bytes asked for, of an allocated block."""
    storage: int = 0
    """What it is allocated for."""
    search_count: int = 0
    """Searches in its pool before it became free: its age is those since."""
    previous: "AllocatorBlock | None" = None
    following: "AllocatorBlock | None" = None

    @property
    def is_whole(self) -> bool:
        """It is all of its segment."""
        return self.previous is None and self.following is None


class BlockOrder:
    """Blocks in order of (size, address), or of address alone; the key of a block must not change while it is in.

    Sorted runs of at most 1,024: adding, removing and looking up cost O(log n) comparisons, and the moves of one run.
    """

    def __init__(self, *, by_size: bool) -> None:
        self._by_size = by_size
        self._runs: list[list[tuple[int, int, AllocatorBlock]]] = []
        self._last: list[tuple[int, int]] = []
        """The highest key of each run."""

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def __iter__(self) -> Iterator[AllocatorBlock]:
        """All blocks in order; the order must not change meanwhile."""
        return (entry[2] for run in self._runs for entry in run)

    def add(self, block: AllocatorBlock) -> None:
        """Put a block in."""
        key = self._key(block)
        if not self._runs:
            self._runs, self._last = [[(*key, block)]], [key]
            return
        index = min(bisect_left(self._last, key), len(self._runs) - 1)
        run = self._runs[index]
        run.insert(bisect_left(run, key), (*key, block))
        if len(run) > 2 * _RUN:
            self._runs[index : index + 1] = [run[:_RUN], run[_RUN:]]
            self._last[index : index + 1] = [run[_RUN - 1][:2], run[-1][:2]]
        else:
            self._last[index] = run[-1][:2]

    def remove(self, block: AllocatorBlock) -> None:
        """Take a block out that is in."""
        key = self._key(block)
        index = bisect_left(self._last, key)
        run = self._runs[index]
        del run[bisect_left(run, key)]
        if run:
            self._last[index] = run[-1][:2]
        else:
            del self._runs[index], self._last[index]

    def from_size(self, size: int) -> Iterator[AllocatorBlock]:
        """The blocks of ``size`` bytes or more, smallest first; the order must not change meanwhile."""
        index = bisect_left(self._last, (size, 0))
        for position in range(index, len(self._runs)):
            run = self._runs[position]
            start = bisect_left(run, (size, 0)) if position == index else 0
            for entry in range(start, len(run)):
                yield run[entry][2]

    def _key(self, block: AllocatorBlock) -> tuple[int, int]:
        return (block.size if self._by_size else 0, block.address)


@dataclass(slots=True, eq=False)
class BlockPool:
    """The free blocks of one stream that are small, or large, and the unmapped parts of its expandable segments."""

    stream: int
    is_small: bool
    free: BlockOrder = field(default_factory=lambda: BlockOrder(by_size=True))
    unmapped: BlockOrder = field(default_factory=lambda: BlockOrder(by_size=False))


def split_block(block: AllocatorBlock, size: int) -> AllocatorBlock:
    """Cut ``block`` to its first ``size`` bytes; the block of what is left, which is in no order yet."""
    remainder = AllocatorBlock(
        address=block.address + size,
        size=block.size - size,
        pool=block.pool,
        page=block.page,
        segment=block.segment,
        mapped=block.mapped,
        previous=block,
        following=block.following,
    )
    if remainder.following is not None:
        remainder.following.previous = remainder
    block.following, block.size = remainder, size
    return remainder


def merge_neighbours(block: AllocatorBlock) -> None:
    """Take into ``block``, which is in no order, those neighbours that are free as it is, mapped or not."""
    before, after = block.previous, block.following
    if before is not None and not before.allocated and before.mapped == block.mapped:
        _order_of(before).remove(before)
        block.address, block.previous = before.address, before.previous
        block.size += before.size
        if block.previous is not None:
            block.previous.following = block
    if after is not None and not after.allocated and after.mapped == block.mapped:
        _order_of(after).remove(after)
        block.following = after.following
        block.size += after.size
        if block.following is not None:
            block.following.previous = block


def _order_of(block: AllocatorBlock) -> BlockOrder:
    return block.pool.free if block.mapped else block.pool.unmapped


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockState:
    """An allocated block: the storage that it is for, its bytes, and those that were asked for."""

    storage: int
    address: int
    nbytes: int
    request: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentState:
    """A segment and its allocated blocks in order of address; between them and behind them it is free."""

    address: int
    nbytes: int
    is_small: bool
    stream: int = 0
    blocks: tuple[BlockState, ...] = ()


def segment_state(first: AllocatorBlock) -> SegmentState:
    """The segment that begins with ``first``; of an expandable one, the mapped range."""
    states, end, block = [], first.address, first
    while True:
        end += block.size
        if block.allocated:
            states.append(_block_state(block))
        if block.following is None or not block.following.mapped:
            break
        block = block.following
    return SegmentState(
        address=first.address,
        nbytes=end - first.address,
        is_small=first.pool.is_small,
        stream=first.pool.stream,
        blocks=tuple(states),
    )


def _block_state(block: AllocatorBlock) -> BlockState:
    return BlockState(storage=block.storage, address=block.address, nbytes=block.size, request=block.request)
