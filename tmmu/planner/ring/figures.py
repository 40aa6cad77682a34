"""What a schedule is worth: time of a pass, bandwidth and overlap in the long run, and single passes simulated."""

from dataclasses import dataclass
from itertools import product
from typing import Final

from tmmu.errors import InternalError
from tmmu.ir.ring import Ring
from tmmu.planner.ring.problem import RingProblem, StreamedBlocks, streamed_blocks
from tmmu.planner.ring.profile import NS_PER_SECOND
from tmmu.planner.ring.timing import Wait, steady_pass_time

PPM: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one schedule, as docs/spec/ring.md (Time) defines them: ns and bytes of a steady-state pass."""

    pass_ns: int
    limit: str
    compute_ns: int
    link_ns: int
    model_bytes: int
    bytes_per_pass: int

    @property
    def bandwidth(self) -> int:
        """Effective bandwidth: bytes of all blocks per second of a pass."""
        return self.model_bytes * NS_PER_SECOND // self.pass_ns if self.pass_ns else 0

    @property
    def utilization_ppm(self) -> int:
        """Share of the pass in which the link copies."""
        return self.link_ns * PPM // self.pass_ns if self.pass_ns else 0

    @property
    def overlap_ppm(self) -> int:
        """Time saved by copying during compute, as a share of what it could save at most."""
        most = min(self.compute_ns, self.link_ns)
        return (self.compute_ns + self.link_ns - self.pass_ns) * PPM // most if most else PPM


@dataclass(frozen=True, slots=True, kw_only=True)
class VisitTiming:
    """One visit of a streamed block in one pass: when its copy runs, and when its ops do, in ns from the first copy."""

    pass_index: int
    visit: int
    copy_start: int
    copy_end: int
    start: int
    end: int


def figures_of(problem: RingProblem, ring: Ring) -> Figures:
    """The figures of ``ring``, a sound schedule of ``problem``."""
    streamed, waits = streamed_part(problem, ring)
    time = steady_pass_time(streamed, [row[0] for row in waits])
    if time is None:
        raise InternalError("a ring that was judged sound waits for itself")
    return Figures(
        pass_ns=time.ns,
        limit=time.limit,
        compute_ns=problem.compute_ns,
        link_ns=streamed.link_ns,
        model_bytes=ring.model_bytes,
        bytes_per_pass=ring.bytes_per_pass,
    )


def streamed_part(problem: RingProblem, ring: Ring) -> tuple[StreamedBlocks, list[tuple[Wait, ...]]]:
    """The streamed blocks of ``ring``, and per streamed visit the waits of its copy."""
    streamed = streamed_blocks(problem, [not block.resident for block in ring.blocks])
    index = {visit: i for i, visit in enumerate(streamed.visits)}
    return streamed, [tuple((index[wait.visit], wait.lag) for wait in copy.waits) for copy in ring.copies]


def simulate(problem: RingProblem, ring: Ring, passes: int) -> tuple[VisitTiming, ...]:
    """The first ``passes`` passes: only resident blocks are loaded at 0, every event is as early as its waits allow."""
    streamed, waits = streamed_part(problem, ring)
    ids, before, count = streamed.visits, problem.compute_before_ns, len(streamed.visits)
    landed = start = previous = 0
    timings: list[VisitTiming] = []
    for number, i in product(range(passes), range(count)):
        visit, first = problem.visits[ids[i]], number * count
        ready = [_visit_end(streamed, timings, first - lag * count, r) for r, lag in waits[i] if lag <= number]
        begin = max([landed, *ready])
        landed = begin + problem.copy_ns[visit.block]
        # Compute time since the previous visit started is at least what the ops between the two take.
        position = number * problem.compute_ns + before[visit.first]
        start, previous = max(start + position - previous, landed), position
        end = start + before[visit.last + 1] - before[visit.first]
        timings.append(
            VisitTiming(pass_index=number, visit=ids[i], copy_start=begin, copy_end=landed, start=start, end=end)
        )
    return tuple(timings)


def _visit_end(streamed: StreamedBlocks, timings: list[VisitTiming], first: int, reader: int) -> int:
    """When the ops of visit ``reader`` have run, in the pass whose visits begin at index ``first`` of ``timings``."""
    last_start, after_ns = streamed.visit_ends[reader]
    return timings[first + last_start].start + after_ns


def first_pass_ns(problem: RingProblem, ring: Ring) -> int:
    """Nanoseconds of the first pass, in which nothing has been prefetched yet."""
    timings = simulate(problem, ring, 1)
    if not timings:
        return problem.compute_ns
    last = timings[-1]
    return last.start + problem.compute_ns - problem.compute_before_ns[problem.visits[last.visit].first]
