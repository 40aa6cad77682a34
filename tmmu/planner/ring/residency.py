"""Which blocks stay: the sets of streamed blocks that are worth a try, whatever the budget.

All sets where the blocks are few; one for each count of equal blocks where these are few, spread evenly over the
pass; else the sets of a subset-sum table that keeps the fullest one of each of its steps.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Final

from tmmu.planner.ring.problem import RingProblem, StreamedBlocks, streamed_blocks

FEW_BLOCKS: Final = 8
FEW_SETS: Final = 4096
STEPS: Final = 512
"""A resident set misses the best one by at most this part of the weights, and what packing loses."""
LIMITS: Final = 6

Kind = tuple[int, int]


def residency_candidates(problem: RingProblem) -> tuple[StreamedBlocks, ...]:
    """Streams by (least time of a pass, bytes moved); the one of nothing and the one of all that may are among them."""
    free = [block for block, pinned in enumerate(problem.pinned) if not pinned]
    found = dict.fromkeys(_sets(problem, free))
    made = [
        streamed_blocks(problem, [streamed >> block & 1 > 0 for block in range(len(problem.bytes))])
        for streamed in found
    ]
    return tuple(sorted(made, key=lambda stream: (stream.floor_ns, stream.bytes_per_pass, stream.blocks)))


def _sets(problem: RingProblem, free: Sequence[int]) -> Iterator[int]:
    """Sets of streamed blocks, as bits."""
    every = sum(1 << block for block in free)
    yield every
    kinds: dict[Kind, list[int]] = {}
    for block in free:
        kinds.setdefault((problem.bytes[block], problem.visit_counts[block]), []).append(block)
    if len(free) <= FEW_BLOCKS:
        yield from (sum(1 << block for block in chosen if block >= 0) for chosen in product(*((-1, b) for b in free)))
    elif prod(len(blocks) + 1 for blocks in kinds.values()) <= FEW_SETS:
        for counts in product(*(range(len(blocks) + 1) for blocks in kinds.values())):
            yield sum(_spread(blocks, count) for blocks, count in zip(kinds.values(), counts, strict=True))
    else:
        yield from (every ^ stays for stays in _fullest(problem, free))


def _spread(blocks: Sequence[int], count: int) -> int:
    """``count`` of ``blocks``, evenly."""
    total = len(blocks)
    return sum(1 << block for i, block in enumerate(blocks) if (i + 1) * count // total > i * count // total)


def _fullest(problem: RingProblem, free: Sequence[int]) -> Iterator[int]:
    """Sets of resident blocks: of each step of bytes the set that saves most, for some limits on what streams."""
    sizes = sorted({problem.bytes[block] for block in free}, reverse=True)
    for limit in dict.fromkeys(sizes[i * len(sizes) // LIMITS] for i in range(LIMITS)):
        above = [block for block in free if problem.bytes[block] > limit]
        stays = sum(1 << block for block in above)
        yield from (stays | chosen for chosen in _table(problem, [b for b in free if problem.bytes[b] <= limit]))


def _table(problem: RingProblem, blocks: Sequence[int]) -> list[int]:
    step = max(1, sum(problem.bytes[block] for block in blocks) // STEPS)
    best: dict[int, tuple[int, int, int]] = {0: (0, 0, 0)}
    for block in blocks:
        size, saves = problem.bytes[block], problem.bytes[block] * problem.visit_counts[block]
        for saved, total, chosen in sorted(best.values()):
            row = (saved + saves, total + size, chosen | 1 << block)
            best[row[1] // step] = max(best.get(row[1] // step, row), row)
    return [best[row][2] for row in sorted(best)]
