"""Blocks: items that join exactly into a rectangle of time and bytes are packed as one item.

Two joins. *Chain*: one item dies where another of its size is born, and no third of that size dies or is born then.
*Stack*: items of one span, two of which or all of which have together the size of an item that touches them in time;
loosely, all of them whatever they touch. Where every moment is full, as in a tiling, the first two are nearly certain.

Blocks restrict: a packing of the blocks is one of the items, but the least peak of the blocks may be higher. Joins are
repeated until there are none, in at most ``MAX_PASSES`` passes of O(items + pairs within a span).
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations
from typing import Final

from tmmu.ir.problem import PackProblem

MAX_PASSES: Final = 64
MAX_PAIRED: Final = 32
"""Items of one span that are tried in pairs."""


@dataclass(frozen=True, slots=True)
class ItemBlock:
    """A rectangle full of items: (item, units from the block's lowest) each."""

    birth: int
    death: int
    size: int
    member: tuple[tuple[int, int], ...]


def join_items(problem: PackProblem, *, loosely: bool) -> tuple[ItemBlock, ...]:
    """The blocks of a problem without fixed offsets whose sizes are multiples of its one alignment, by birth."""
    rows = zip(problem.birth, problem.death, problem.size, strict=True)
    blocks = [ItemBlock(birth, death, size, ((item, 0),)) for item, (birth, death, size) in enumerate(rows)]
    for _ in range(MAX_PASSES):
        groups = list(_chains(blocks)) or list(_stacks(blocks, loosely=loosely))
        if not groups:
            break
        gone = {index for group in groups for index in group}
        joined = [_join([blocks[index] for index in group]) for group in groups]
        blocks = [block for index, block in enumerate(blocks) if index not in gone] + joined
    return tuple(sorted(blocks, key=lambda block: (block.birth, block.death, block.size, block.member)))


def problem_of_blocks(blocks: Sequence[ItemBlock], alignment: int) -> PackProblem:
    """The blocks as items."""
    return PackProblem(
        size=tuple(block.size for block in blocks),
        birth=tuple(block.birth for block in blocks),
        death=tuple(block.death for block in blocks),
        alignment=(alignment,) * len(blocks),
        fixed=(-1,) * len(blocks),
    )


def offsets_of_members(blocks: Sequence[ItemBlock], offset: Sequence[int]) -> tuple[int, ...]:
    """Offsets per item where the blocks lie at ``offset``."""
    low_of = {item: low + lift for block, low in zip(blocks, offset, strict=True) for item, lift in block.member}
    return tuple(low_of[item] for item in range(len(low_of)))


def _join(parts: Sequence[ItemBlock]) -> ItemBlock:
    """A chain in time, or a stack of blocks of one span."""
    first, last = parts[0], parts[-1]
    if first.death == last.birth:
        return ItemBlock(first.birth, last.death, first.size, first.member + last.member)
    lifts = list(accumulate((part.size for part in parts), initial=0))
    member = tuple(
        (item, lift + base) for part, base in zip(parts, lifts[:-1], strict=True) for item, lift in part.member
    )
    return ItemBlock(first.birth, first.death, lifts[-1], member)


def _chains(blocks: Sequence[ItemBlock]) -> Iterator[tuple[int, ...]]:
    """Pairs, none with a block of another pair."""
    dying, born = defaultdict(list), defaultdict(list)
    for index, block in enumerate(blocks):
        dying[block.death, block.size].append(index)
        born[block.birth, block.size].append(index)
    taken: set[int] = set()
    for key, before in dying.items():
        after = born.get(key, [])
        if len(before) == len(after) == 1 and taken.isdisjoint((*before, *after)):
            taken.update((*before, *after))
            yield (*before, *after)


def _stacks(blocks: Sequence[ItemBlock], *, loosely: bool) -> Iterator[tuple[int, ...]]:
    """Groups of one span each."""
    alike = defaultdict(list)
    for index, block in enumerate(blocks):
        alike[block.birth, block.death].append(index)
    touching = {("death", block.death, block.size) for block in blocks}
    touching |= {("birth", block.birth, block.size) for block in blocks}
    for (birth, death), group in alike.items():
        pairs = combinations(group, 2) if len(group) <= MAX_PAIRED else ()
        for members in (*pairs, tuple(group)) if len(group) > 1 else ():
            size = sum(blocks[index].size for index in members)
            if {("death", birth, size), ("birth", death, size)} & touching:
                yield members
                break
        else:
            if loosely and len(group) > 1:
                yield tuple(group)
