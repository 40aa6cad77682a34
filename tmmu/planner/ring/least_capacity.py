"""The least budgets: for any schedule at all, and for one that is limited by the link or by compute, not by room."""

from collections.abc import Callable, Iterator

from tmmu.planner.ring.cyclic import Candidate, evaluate_addresses, is_deep_enough, pass_time_bound
from tmmu.planner.ring.layouts import candidate_layouts, extent
from tmmu.planner.ring.policies import POLICY
from tmmu.planner.ring.problem import RingProblem, StreamedBlocks
from tmmu.planner.ring.residency import residency_candidates
from tmmu.planner.ring.timing import CAPACITY


def least_capacity(problem: RingProblem, policy: str, depth: int) -> int | None:
    """The fewest bytes in which ``policy`` finds a schedule with copies ``depth`` visits ahead, if there is one."""
    if policy == "cyclic":
        return _least_extent(problem, lambda candidate: is_deep_enough(candidate, depth))
    return next((room for room in _distinct_capacities(problem, policy) if POLICY[policy](problem, room, depth)), None)


def least_busy_capacity(problem: RingProblem, depth: int) -> int:
    """The fewest bytes in which a schedule is found that is not limited by ``capacity``."""
    return _least_extent(
        problem,
        lambda candidate: candidate.pass_time.limit != CAPACITY and is_deep_enough(candidate, depth),
        lambda streamed, room: pass_time_bound(streamed, room) == streamed.floor_ns,
    )


def _least_extent(
    problem: RingProblem,
    accept: Callable[[Candidate], bool],
    is_possible: Callable[[StreamedBlocks, int], bool] = lambda streamed, room: room >= streamed.largest_bytes,
) -> int:
    """The least bytes of all accepted candidates. All blocks resident is always accepted, so there is one.

    Residencies come by the least bytes that they could need; one that ``is_possible`` rules out below the best so far
    is skipped without laying it out.
    """
    best = sum(problem.bytes)
    for streamed in sorted(residency_candidates(problem), key=lambda s: (s.resident_bytes + s.largest_bytes, s.blocks)):
        room = best - streamed.resident_bytes - 1
        if room < streamed.largest_bytes or not streamed.blocks or not is_possible(streamed, room):
            continue
        for end, addresses in _layout_ends(streamed, room):
            if end < best:
                candidate = evaluate_addresses(streamed, addresses)
                best = end if candidate and accept(candidate) else best
    return best


def _layout_ends(streamed: StreamedBlocks, room: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    sizes = [streamed.problem.bytes[block] for block in streamed.blocks]
    for addresses in candidate_layouts(streamed, room, all_stream=False):
        yield streamed.resident_bytes + extent(sizes, addresses), addresses


def _distinct_capacities(problem: RingProblem, policy: str) -> list[int]:
    """The capacities at which the layout of a policy other than ``cyclic`` can change, ascending."""
    free = [size for size, pinned in zip(problem.bytes, problem.pinned, strict=True) if not pinned]
    base, largest = sum(problem.bytes) - sum(free), max(free, default=0)
    if policy != "skip_end":
        return [base + count * largest for count in range(len(free) + 2)]
    sums = {sum(free[i:j]) for i in range(len(free)) for j in range(i + 1, len(free) + 1)}
    return sorted(base + total for total in sums | {0})
