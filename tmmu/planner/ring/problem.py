"""Input of the ring planner: blocks, the ops that visit them, and how long ops and copies take."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from tmmu.ir.ring import Member, Visit


@dataclass(frozen=True, kw_only=True)
class RingProblem:
    """Blocks in the order of their first visits; visits sorted by (first, last, block). Every block has a visit.

    Per block: ``names``, ``bytes`` (multiples of ``alignment``), ``members``, ``pinned`` (must be resident),
    ``copy_ns``. Per position of the order: ``op_ns``. Times are whole nanoseconds.
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
        """Prefix sums of ``op_ns``: per position, and once more for the end, the time of all ops before it."""
        return tuple(accumulate(self.op_ns, initial=0))

    @cached_property
    def compute_ns(self) -> int:
        """The time of all ops of a pass, one after another."""
        return self.compute_before_ns[-1]

    @cached_property
    def visit_counts(self) -> tuple[int, ...]:
        """Visits per block, which is the number of its copies in a pass if it is streamed."""
        count = [0] * len(self.bytes)
        for visit in self.visits:
            count[visit.block] += 1
        return tuple(count)


@dataclass(frozen=True, kw_only=True)
class StreamedBlocks:
    """The streamed part of a problem for one choice of residency.

    ``visits`` and ``blocks`` are ids of the problem, ascending. All other blocks are resident.
    """

    problem: RingProblem
    visits: tuple[int, ...]
    blocks: tuple[int, ...]

    @cached_property
    def link_ns(self) -> int:
        """The time of all copies of a pass, one after another."""
        visits, copy_ns = self.problem.visits, self.problem.copy_ns
        return sum(copy_ns[visits[visit].block] for visit in self.visits)

    @cached_property
    def floor_ns(self) -> int:
        """A lower bound on the time of a pass in any layout: all copies use one link, all ops one compute stream."""
        return max(self.link_ns, self.problem.compute_ns)

    @cached_property
    def visit_ends(self) -> tuple[tuple[int, int], ...]:
        """When each visit ends, relative to a visit's start: (index of the last visit to start before, ns after it).

        Timing knows when visits start; visits may overlap, so an end is given from the latest such start.
        """
        visits, before = [self.problem.visits[visit] for visit in self.visits], self.problem.compute_before_ns
        ends = []
        for visit in visits:
            index = bisect_right(visits, visit.last, key=lambda candidate: candidate.first) - 1
            ends.append((index, before[visit.last + 1] - before[visits[index].first]))
        return tuple(ends)

    @cached_property
    def largest_bytes(self) -> int:
        """The bytes of the largest streamed block."""
        return max((self.problem.bytes[block] for block in self.blocks), default=0)

    @cached_property
    def resident_bytes(self) -> int:
        """The bytes of all resident blocks."""
        return sum(self.problem.bytes) - sum(self.problem.bytes[block] for block in self.blocks)

    @cached_property
    def bytes_per_pass(self) -> int:
        """The bytes that the link moves in a pass."""
        return sum(self.problem.bytes[self.problem.visits[visit].block] for visit in self.visits)


def streamed_blocks(problem: RingProblem, is_streamed: Sequence[bool]) -> StreamedBlocks:
    """The streamed part of ``problem``; ``is_streamed`` has one entry per block."""
    return StreamedBlocks(
        problem=problem,
        visits=tuple(i for i, visit in enumerate(problem.visits) if is_streamed[visit.block]),
        blocks=tuple(block for block, streams in enumerate(is_streamed) if streams),
    )
