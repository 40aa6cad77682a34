"""What a schedule is worth: time per pass, bandwidth, overlap; and its passes one by one."""

from dataclasses import dataclass
from typing import Final

from tmmu.errors import InternalError
from tmmu.ir.ring import Ring
from tmmu.planner.ring.problem import RingProblem, StreamedBlocks, streamed_blocks
from tmmu.planner.ring.profile import NS_PER_SECOND
from tmmu.planner.ring.timing import PassTime, Wait, steady_pass_time

PPM: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one schedule, as docs/spec/ring.md defines them. Times are of a pass, in nanoseconds, once passes repeat."""

    pass_ns: int
    limit: str
    compute_ns: int
    link_ns: int
    model_bytes: int
    bytes_per_pass: int

    @property
    def bandwidth(self) -> int:
        """Bytes of all blocks per second."""
        return self.model_bytes * NS_PER_SECOND // self.pass_ns if self.pass_ns else 0

    @property
    def utilization_ppm(self) -> int:
        """Of the time, the share in which the link copies."""
        return self.link_ns * PPM // self.pass_ns if self.pass_ns else 0

    @property
    def overlap_ppm(self) -> int:
        """Of the time that computing and copying at once can save, the share that it does."""
        most = min(self.compute_ns, self.link_ns)
        return (self.compute_ns + self.link_ns - self.pass_ns) * PPM // most if most else PPM


@dataclass(frozen=True, slots=True, kw_only=True)
class VisitTiming:
    """One visit of a streamed block in one pass: when its copy runs, and when its ops do, in nanoseconds."""

    pass_index: int
    visit: int
    copy_start: int
    copy_end: int
    start: int
    end: int


def figures_of(problem: RingProblem, ring: Ring) -> Figures:
    """The figures of ``ring``, which is a sound schedule of ``problem``."""
    stream, waits = streamed_part(problem, ring)
    pace: PassTime | None = steady_pass_time(stream, [row[0] for row in waits])
    if pace is None:
        raise InternalError("a ring that was judged sound waits for itself")
    return Figures(
        pass_ns=pace.ns,
        limit=pace.limit,
        compute_ns=problem.compute_ns,
        link_ns=stream.link_ns,
        model_bytes=ring.model_bytes,
        bytes_per_pass=ring.bytes_per_pass,
    )


def streamed_part(problem: RingProblem, ring: Ring) -> tuple[StreamedBlocks, list[tuple[Wait, ...]]]:
    """The stream of ``ring``, and whom the copy of each of its visits waits for."""
    stream = streamed_blocks(problem, [not block.resident for block in ring.blocks])
    index = {visit: i for i, visit in enumerate(stream.visits)}
    return stream, [tuple((index[wait.visit], wait.lag) for wait in copy.waits) for copy in ring.copies]


def simulate(problem: RingProblem, ring: Ring, passes: int) -> tuple[VisitTiming, ...]:
    """So many passes, the first with nothing loaded but what stays: every event as early as its waits allow."""
    stream, waits = streamed_part(problem, ring)
    visits, reached = [problem.visits[visit] for visit in stream.visits], problem.compute_before_ns
    link = lane = position = 0
    found: list[VisitTiming] = []
    for turn in range(passes * len(visits)):
        i, passed = turn % len(visits), turn // len(visits)
        began = turn - i
        ready = [_end(stream, found, began - lag * len(visits), other) for other, lag in waits[i] if lag <= passed]
        begins = max([link, *ready])
        link = begins + problem.copy_ns[visits[i].block]
        at = passed * problem.compute_ns + reached[visits[i].first]
        lane, position = max(lane + at - position, link), at
        end = lane + reached[visits[i].last + 1] - reached[visits[i].first]
        found.append(
            VisitTiming(
                pass_index=passed, visit=stream.visits[i], copy_start=begins, copy_end=link, start=lane, end=end
            )
        )
    return tuple(found)


def _end(stream: StreamedBlocks, found: list[VisitTiming], began: int, index: int) -> int:
    """When the ops of visit ``index`` in the pass that ``began`` so many turns ago have run."""
    from_start, after = stream.visit_ends[index]
    return found[began + from_start].start + after


def first_pass_ns(problem: RingProblem, ring: Ring) -> int:
    """How long the first pass takes, in which copies that later ones find done are still to be made."""
    turns = simulate(problem, ring, 1)
    if not turns:
        return problem.compute_ns
    return turns[-1].start + problem.compute_ns - problem.compute_before_ns[problem.visits[turns[-1].visit].first]
