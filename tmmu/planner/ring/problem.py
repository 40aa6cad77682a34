"""What the ring's planner decides about: blocks, who reads them when, and how long ops and copies take."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from tmmu.ir.ring import Member, Visit


@dataclass(frozen=True, kw_only=True)
class RingProblem:
    """Blocks by first visit, visits by (first, last, block), integer nanoseconds. Sizes are multiples of ``alignment``.

    ``pinned`` blocks must stay; the others may stream, one copy for each visit. Every block has a visit.
    """

    names: tuple[str, ...]
    bytes: tuple[int, ...]
    members: tuple[tuple[Member, ...], ...]
    pinned: tuple[bool, ...]
    visits: tuple[Visit, ...]
    op_ns: tuple[int, ...]
    copy_ns: tuple[int, ...]
    alignment: int

    @cached_property
    def compute_before_ns(self) -> tuple[int, ...]:
        """Per position, and once more for the end, how long the ops before it compute."""
        return tuple(accumulate(self.op_ns, initial=0))

    @cached_property
    def compute_ns(self) -> int:
        """What all ops take, one after another."""
        return self.compute_before_ns[-1]

    @cached_property
    def visit_counts(self) -> tuple[int, ...]:
        """Per block, how often it moves in a pass if it streams."""
        count = [0] * len(self.bytes)
        for visit in self.visits:
            count[visit.block] += 1
        return tuple(count)


@dataclass(frozen=True, kw_only=True)
class StreamedBlocks:
    """The streamed part of a problem: some of its visits, in their order, and their blocks."""

    problem: RingProblem
    visits: tuple[int, ...]
    blocks: tuple[int, ...]

    @cached_property
    def link_ns(self) -> int:
        """What the copies of a pass take, one after another."""
        visits, copy_ns = self.problem.visits, self.problem.copy_ns
        return sum(copy_ns[visits[visit].block] for visit in self.visits)

    @cached_property
    def floor_ns(self) -> int:
        """No schedule takes less per pass: the link moves it all, and all is computed."""
        return max(self.link_ns, self.problem.compute_ns)

    @cached_property
    def visit_ends(self) -> tuple[tuple[int, int], ...]:
        """Per visit, the last visit to start before it ends, and how long after that start it ends."""
        visits, reached = [self.problem.visits[visit] for visit in self.visits], self.problem.compute_before_ns
        found = []
        for visit in visits:
            index = bisect_right(visits, visit.last, key=lambda other: other.first) - 1
            found.append((index, reached[visit.last + 1] - reached[visits[index].first]))
        return tuple(found)

    @cached_property
    def largest_bytes(self) -> int:
        """The bytes of its largest block."""
        return max((self.problem.bytes[block] for block in self.blocks), default=0)

    @cached_property
    def resident_bytes(self) -> int:
        """The bytes of all other blocks."""
        return sum(self.problem.bytes) - sum(self.problem.bytes[block] for block in self.blocks)

    @cached_property
    def bytes_per_pass(self) -> int:
        """What the link moves."""
        return sum(self.problem.bytes[self.problem.visits[visit].block] for visit in self.visits)


def streamed_blocks(problem: RingProblem, streamed: Sequence[bool]) -> StreamedBlocks:
    """The part of ``problem`` whose blocks are ``streamed``."""
    return StreamedBlocks(
        problem=problem,
        visits=tuple(i for i, visit in enumerate(problem.visits) if streamed[visit.block]),
        blocks=tuple(block for block, moves in enumerate(streamed) if moves),
    )
