"""Residency: which sets of blocks are worth streaming, whatever the budget.

There are 2^n sets, so the list is cut in a way that depends on the blocks alone:

- up to ``FEW_BLOCKS`` blocks: all sets;
- few kinds of equal blocks: one set for each combination of counts, spread evenly over the pass, as blocks of one size
  are interchangeable except for when they are read;
- otherwise a subset-sum table: of each of ``STEPS`` steps of resident bytes the set that saves the most copied bytes.

Sets are bit masks over blocks. All branches terminate: they enumerate finite products or n passes over a table of at
most ``STEPS + 1`` rows.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Final, TypeAlias

from tmmu.planner.ring.problem import RingProblem, StreamedBlocks, streamed_blocks

FEW_BLOCKS: Final = 8
FEW_SETS: Final = 4096
STEPS: Final = 512
"""A resident set misses the best one by at most 1/512 of the weights, and by what packing loses."""
SIZE_LIMITS: Final = 6

Kind: TypeAlias = tuple[int, int]
"""Bytes and visits: blocks that agree in both cost the link the same."""


def residency_candidates(problem: RingProblem) -> tuple[StreamedBlocks, ...]:
    """Candidates sorted by (least time of a pass, bytes moved, blocks).

    Streaming nothing and streaming all that may stream are among them. Each set occurs once.
    """
    free = [block for block, pinned in enumerate(problem.pinned) if not pinned]
    candidates = [
        streamed_blocks(problem, [mask >> block & 1 > 0 for block in range(len(problem.bytes))])
        for mask in dict.fromkeys(_streamed_sets(problem, free))
    ]
    return tuple(sorted(candidates, key=lambda s: (s.floor_ns, s.bytes_per_pass, s.blocks)))


def _streamed_sets(problem: RingProblem, free: Sequence[int]) -> Iterator[int]:
    """Masks of streamed blocks."""
    every = sum(1 << block for block in free)
    yield every
    kinds: dict[Kind, list[int]] = {}
    for block in free:
        kinds.setdefault((problem.bytes[block], problem.visit_counts[block]), []).append(block)
    if len(free) <= FEW_BLOCKS:
        yield from (sum(1 << block for block in chosen if block >= 0) for chosen in product(*((-1, b) for b in free)))
    elif prod(len(blocks) + 1 for blocks in kinds.values()) <= FEW_SETS:
        for counts in product(*(range(len(blocks) + 1) for blocks in kinds.values())):
            yield sum(_spread_evenly(blocks, count) for blocks, count in zip(kinds.values(), counts, strict=True))
    else:
        yield from (every ^ resident for resident in _fullest_resident_sets(problem, free))


def _spread_evenly(blocks: Sequence[int], count: int) -> int:
    """A mask of ``count`` of ``blocks``, evenly spaced."""
    total = len(blocks)
    return sum(1 << block for i, block in enumerate(blocks) if (i + 1) * count // total > i * count // total)


def _fullest_resident_sets(problem: RingProblem, free: Sequence[int]) -> Iterator[int]:
    """Masks of resident blocks for several limits on the largest streamed block, which sets the least room."""
    sizes = sorted({problem.bytes[block] for block in free}, reverse=True)
    for limit in dict.fromkeys(sizes[i * len(sizes) // SIZE_LIMITS] for i in range(SIZE_LIMITS)):
        above = sum(1 << block for block in free if problem.bytes[block] > limit)
        below = [block for block in free if problem.bytes[block] <= limit]
        yield from (above | mask for mask in _subset_sum_table(problem, below))


def _subset_sum_table(problem: RingProblem, blocks: Sequence[int]) -> list[int]:
    """Of each step of bytes the mask that saves the most copied bytes, then is the fullest."""
    step = max(1, sum(problem.bytes[block] for block in blocks) // STEPS)
    best: dict[int, tuple[int, int, int]] = {0: (0, 0, 0)}
    for block in blocks:
        size, saves = problem.bytes[block], problem.bytes[block] * problem.visit_counts[block]
        for saved, total, mask in sorted(best.values()):
            row = (saved + saves, total + size, mask | 1 << block)
            best[row[1] // step] = max(best.get(row[1] // step, row), row)
    return [best[row][2] for row in sorted(best)]
