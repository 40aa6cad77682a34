"""A model of torch's native caching allocator for CUDA: the pools, segments and blocks of one device.

It follows the rules of c10/cuda/CUDACachingAllocator.cpp as docs/spec/caching-allocator.md states them, and is called a
model: private pools (graphs), blocks used on a second stream and memory outside the allocator are not in it. Sizes are
in bytes. A call costs O(log n) comparisons for n free blocks, and moves of at most 1,024 entries; looking for place in
expandable segments takes a step for each unmapped range besides.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Final

from tmmu.eager.allocator_blocks import (
    AllocatorBlock,
    BlockPool,
    SegmentState,
    merge_neighbours,
    segment_state,
    split_block,
)
from tmmu.eager.allocator_config import (
    BLOCK_BYTES,
    SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
    AllocatorConfig,
    round_request,
    segment_bytes,
)
from tmmu.eager.expandable_segments import map_expandable_block, unmap_expandable_block
from tmmu.eager.segment_supply import SegmentSupply
from tmmu.errors import InternalError

DEFAULT_CONFIG: Final = AllocatorConfig()


class CachingAllocator:
    """The allocator of one device, changed by each call; the same calls give the same state.

    ``live`` are bytes asked for, ``allocated`` those of their blocks, ``reserved`` those of segments: at all times
    ``live <= allocated <= reserved``. ``segments`` are there at the beginning; none of them is expandable.
    ``addresses`` says where the device puts a segment of so many bytes.
    """

    def __init__(
        self,
        config: AllocatorConfig = DEFAULT_CONFIG,
        *,
        capacity: int | None = None,
        segments: Iterable[SegmentState] = (),
        addresses: Callable[[int], int] | None = None,
    ) -> None:
        self.config = config
        self.live = 0
        self.allocated = 0
        self._supply = SegmentSupply(config=config, capacity=capacity, addresses=addresses)
        self._pools: dict[tuple[bool, int], BlockPool] = {}
        self._blocks: dict[int, AllocatorBlock | None] = {}
        self._searches = {True: 0, False: 0}
        """Of the small and of the large pool, where old segments are collected: blocks age by them."""
        for segment in segments:
            self._adopt(segment)

    @property
    def reserved(self) -> int:
        """Bytes of all segments, mapped ones of expandable segments."""
        return self._supply.reserved

    @property
    def segment_allocs(self) -> int:
        """Segments made since the beginning, and ranges mapped into expandable ones."""
        return self._supply.allocs

    @property
    def segment_frees(self) -> int:
        """Segments given back since the beginning, and ranges unmapped."""
        return self._supply.frees

    def allocate(self, storage: int, nbytes: int, stream: int = 0) -> int | None:
        """The address of a block for ``storage``; ``None`` where the device has no memory for it, even after retries.

        A storage of no bytes has no block, and address 0.
        """
        if storage in self._blocks or nbytes < 0:
            raise InternalError(f"storage {storage} of {nbytes} bytes cannot be allocated: it is live, or below 0")
        if nbytes == 0:
            self._blocks[storage] = None
            return 0
        size = round_request(nbytes, self.config)
        pool = self._pool(stream, is_small=size <= SMALL_BYTES)
        block = self._best_fit(pool, size) or self._from_device(pool, size)
        if block is None:
            return None
        if self._is_split(block, size):
            self._add_free(split_block(block, size))
        self._hand_out(block, storage, nbytes)
        return block.address

    def free(self, storage: int) -> None:
        """The block of ``storage`` is free from here on, merged with free neighbours in its segment."""
        if storage not in self._blocks:
            raise InternalError(f"storage {storage} is freed, and is not live")
        block = self._blocks.pop(storage)
        if block is None:
            return
        self.live -= block.request
        self.allocated -= block.size
        block.allocated = False
        merge_neighbours(block)
        self._add_free(block)

    def empty_cache(self) -> None:
        """Give back all segments without an allocated block, and all free pages of expandable segments."""
        for pool in self._ordered_pools():
            for block in list(pool.free):
                if block.page:
                    unmap_expandable_block(block, self._supply)
                elif block.is_whole:
                    self._give_back(block)

    def segment_states(self) -> tuple[SegmentState, ...]:
        """All segments in order of address; of an expandable one, each range that is mapped."""
        allocated = (block for block in self._blocks.values() if block is not None)
        blocks = chain(allocated, *(pool.free for pool in self._pools.values()))
        firsts = (block for block in blocks if block.previous is None or not block.previous.mapped)
        return tuple(segment_state(first) for first in sorted(firsts, key=lambda block: block.address))

    def _pool(self, stream: int, *, is_small: bool) -> BlockPool:
        return self._pools.setdefault((is_small, stream), BlockPool(stream, is_small))

    def _ordered_pools(self, *, large_only: bool = False) -> list[BlockPool]:
        """Large pools first, each kind by stream."""
        return [self._pools[key] for key in sorted(self._pools) if not (large_only and key[0])]

    def _hand_out(self, block: AllocatorBlock, storage: int, nbytes: int) -> None:
        block.allocated, block.request, block.storage = True, nbytes, storage
        self._blocks[storage] = block
        self.live += nbytes
        self.allocated += block.size

    def _add_free(self, block: AllocatorBlock) -> None:
        block.search_count = self._searches[block.pool.is_small]
        block.pool.free.add(block)

    def _best_fit(self, pool: BlockPool, size: int) -> AllocatorBlock | None:
        """The smallest free block of ``size`` bytes or more, the lowest address of several; out of the pool."""
        if self._collects_garbage:
            self._searches[pool.is_small] += 1
        block = _first_fit(pool.free.from_size(size), expandable=self.config.expandable_segments)
        if block is None or not self._is_acceptable(block, size):
            return None
        pool.free.remove(block)
        return block

    def _is_acceptable(self, block: AllocatorBlock, size: int) -> bool:
        """Large blocks that are never split are for large requests, and only for those that nearly fill them."""
        limit = self.config.max_split_bytes
        if limit is None:
            return True
        if size < limit:
            return block.size < limit
        return block.size < size + self.config.max_non_split_rounding_bytes

    def _is_split(self, block: AllocatorBlock, size: int) -> bool:
        remainder, limit = block.size - size, self.config.max_split_bytes
        if block.pool.is_small or self.config.expandable_segments:
            return remainder >= BLOCK_BYTES
        return remainder > SMALL_BYTES and (limit is None or size < limit)

    def _from_device(self, pool: BlockPool, size: int) -> AllocatorBlock | None:
        """A block of a new segment, after old ones were given back where there is no memory for it."""
        if self._collects_garbage:
            self._collect_garbage()
        block = self._new_block(pool, size)
        if block is None and self._release_oversize(pool, size):
            block = self._new_block(pool, size)
        if block is None:
            self.empty_cache()
            block = self._new_block(pool, size)
        return block

    def _new_block(self, pool: BlockPool, size: int) -> AllocatorBlock | None:
        nbytes = segment_bytes(size, self.config)
        if not self._supply.is_allowed(nbytes):
            return None
        if self.config.expandable_segments:
            page = SMALL_SEGMENT_BYTES if pool.is_small else self.config.large_segment_bytes
            return map_expandable_block(pool, size, page, self._supply)
        if not self._supply.reserve(nbytes):
            return None
        return AllocatorBlock(address=self._supply.address(nbytes), size=nbytes, pool=pool)

    def _give_back(self, block: AllocatorBlock) -> None:
        block.pool.free.remove(block)
        self._supply.release(block.size)

    def _release_oversize(self, pool: BlockPool, size: int) -> bool:
        """Give back segments too large to split: one of ``size`` bytes, or the largest until they have them."""
        limit = self.config.max_split_bytes
        if limit is None:
            return False
        target = max(size, limit)
        enough = next(pool.free.from_size(target), None)
        if enough is not None and not enough.page:
            self._give_back(enough)
            return True
        total = 0
        for block in reversed([b for b in pool.free if limit <= b.size < target]):
            if total < target and not block.page:
                total += block.size
                self._give_back(block)
        return total >= target

    @property
    def _collects_garbage(self) -> bool:
        return self.config.garbage_collection_threshold > 0 and self._supply.allowed is not None

    def _collect_garbage(self) -> None:
        """Above the threshold, give back free large segments of average age or older, in rounds."""
        allowed = self._supply.allowed or 0
        target = self.reserved - int(self.config.garbage_collection_threshold * allowed)
        whole = [block for pool in self._ordered_pools(large_only=True) for block in pool.free if block.is_whole]
        searches = self._searches[False]
        total, is_progress = 0, True
        while total < target and is_progress and whole:
            age = sum(searches - block.search_count for block in whole) / len(whole)
            old = [block for block in whole if not block.page and searches - block.search_count >= age]
            whole = [block for block in whole if block.page or searches - block.search_count < age]
            for block in old:
                total += block.size
                self._give_back(block)
            is_progress = bool(old)

    def _adopt(self, segment: SegmentState) -> None:
        """Take a segment that was there before; a gap between allocated blocks is a free block."""
        pool = self._pool(segment.stream, is_small=segment.is_small)
        block: AllocatorBlock | None = AllocatorBlock(address=segment.address, size=segment.nbytes, pool=pool)
        self._supply.reserved += segment.nbytes
        self._supply.avoid(segment.address, segment.nbytes)
        for state in segment.blocks:
            if block is None or not block.address <= state.address <= block.address + block.size - state.nbytes:
                raise InternalError(f"block {state.address} does not lie in a free part of segment {segment.address}")
            if state.address > block.address:
                gap, block = block, split_block(block, state.address - block.address)
                self._add_free(gap)
            remainder = split_block(block, state.nbytes) if block.size > state.nbytes else None
            self._hand_out(block, state.storage, state.request)
            block = remainder
        if block is not None:
            self._add_free(block)


def _first_fit(blocks: Iterator[AllocatorBlock], *, expandable: bool) -> AllocatorBlock | None:
    """The first of ``blocks``; one that can grow counts as large as it can become, and a later one may be smaller."""
    if not expandable:
        return next((block for block in blocks if not block.page), None)
    best = next(blocks, None)
    for block in blocks:
        if best is None or not best.page or _reach(block) >= _reach(best):
            break
        best = block
    return best


def _reach(block: AllocatorBlock) -> int:
    """The bytes that a block has once the unmapped bytes behind it are mapped."""
    after = block.following
    return block.size + (after.size if after is not None and not after.mapped else 0)
