"""Expandable segments of the caching allocator's model: one range of addresses, mapped page by page as it is needed."""

from tmmu.eager.allocator_blocks import AllocatorBlock, BlockPool, merge_neighbours, split_block
from tmmu.eager.segment_supply import SegmentSupply


def map_expandable_block(pool: BlockPool, size: int, page: int, supply: SegmentSupply) -> AllocatorBlock | None:
    """A free block of ``size`` bytes or more, out of ``pool.free``, for which pages are mapped; ``None``: no memory.

    The lowest address at which free and unmapped bytes suffice; pages mapped before memory ended stay mapped. Looks
    at each unmapped range in turn, of which there is one until ranges are unmapped.
    """
    block = _lowest_with_space(pool, size)
    if block is None:
        block = _new_address_space(pool, page, supply)
    if not block.mapped and not _map_pages(block, min(block.size, size), supply):
        return None
    while block.size < size:
        unmapped = block.following
        if unmapped is None or not _map_pages(unmapped, min(size - block.size, unmapped.size), supply):
            return None
        block = unmapped
    pool.free.remove(block)
    return block


def _lowest_with_space(pool: BlockPool, size: int) -> AllocatorBlock | None:
    """The first of a row of free and unmapped blocks that hold ``size`` bytes together, lowest address first."""
    for unmapped in pool.unmapped:
        before = unmapped.previous
        first = unmapped if before is None or before.allocated else before
        block: AllocatorBlock | None = first
        total = 0
        while total < size and block is not None and not block.allocated:
            total += block.size
            block = block.following
        if total >= size:
            return first
    return None


def _new_address_space(pool: BlockPool, page: int, supply: SegmentSupply) -> AllocatorBlock:
    nbytes = supply.address_space(page)
    address = supply.address(nbytes)
    block = AllocatorBlock(address=address, size=nbytes, pool=pool, page=page, segment=address, mapped=False)
    pool.unmapped.add(block)
    return block


def _map_pages(block: AllocatorBlock, size: int, supply: SegmentSupply) -> bool:
    """Map the first pages of an unmapped block that hold ``size`` bytes; it becomes free, and merges."""
    nbytes = -(-size // block.page) * block.page
    if not supply.reserve(nbytes):
        return False
    block.pool.unmapped.remove(block)
    if nbytes < block.size:
        block.pool.unmapped.add(split_block(block, nbytes))
    block.mapped = True
    merge_neighbours(block)
    block.pool.free.add(block)
    return True


def unmap_expandable_block(block: AllocatorBlock, supply: SegmentSupply) -> None:
    """Unmap the whole pages of a free block; what of it shares a page with a neighbour stays mapped and free.

    A segment of which nothing is mapped any more gives its addresses back.
    """
    page, end = block.page, block.address + block.size
    first = block.segment + -(-(block.address - block.segment) // page) * page
    last = block.segment + (end - block.segment) // page * page
    if first >= last:
        return
    pool = block.pool
    pool.free.remove(block)
    if last < end:
        pool.free.add(split_block(block, last - block.address))
    if first > block.address:
        inner = split_block(block, first - block.address)
        pool.free.add(block)
        block = inner
    block.mapped = False
    merge_neighbours(block)
    if not block.is_whole:
        pool.unmapped.add(block)
    supply.release(last - first)
