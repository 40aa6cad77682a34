"""The least budgets: that any schedule needs, and that leaves the link or the lane no idle time for want of room."""

from collections.abc import Callable, Iterator

from tmmu.planner.ring.cyclic import Candidate, evaluate_addresses, is_deep_enough, pass_time_bound
from tmmu.planner.ring.layouts import candidate_layouts, extent
from tmmu.planner.ring.policies import POLICY
from tmmu.planner.ring.problem import RingProblem, StreamedBlocks
from tmmu.planner.ring.residency import residency_candidates
from tmmu.planner.ring.timing import CAPACITY


def least_capacity(problem: RingProblem, policy: str, depth: int) -> int | None:
    """The fewest bytes in which this policy finds a schedule whose copies are issued ``depth`` visits ahead, if any."""
    if policy == "cyclic":
        return _least(problem, lambda choice: is_deep_enough(choice, depth))
    return next((room for room in _rooms(problem, policy) if POLICY[policy](problem, room, depth)), None)


def least_busy_capacity(problem: RingProblem, depth: int) -> int:
    """The fewest bytes in which a schedule is found that is limited by the link or by computing, not by room."""
    return _least(
        problem,
        lambda choice: choice.pass_time.limit != CAPACITY and is_deep_enough(choice, depth),
        lambda stream, room: pass_time_bound(stream, room) == stream.floor_ns,
    )


def _least(
    problem: RingProblem,
    accept: Callable[[Candidate], bool],
    possible: Callable[[StreamedBlocks, int], bool] = lambda stream, room: room >= stream.largest_bytes,
) -> int:
    """The least end of all candidates that are accepted; holding everything always is."""
    best = sum(problem.bytes)
    for stream in sorted(
        residency_candidates(problem), key=lambda one: (one.resident_bytes + one.largest_bytes, one.blocks)
    ):
        room = best - stream.resident_bytes - 1
        if room < stream.largest_bytes or not stream.blocks or not possible(stream, room):
            continue
        for end, address in _ends(stream, room):
            if end < best:
                choice = evaluate_addresses(stream, address)
                best = end if choice and accept(choice) else best
    return best


def _ends(stream: StreamedBlocks, room: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    sizes = [stream.problem.bytes[block] for block in stream.blocks]
    for address in candidate_layouts(stream, room, bare=False):
        yield stream.resident_bytes + extent(sizes, address), address


def _rooms(problem: RingProblem, policy: str) -> list[int]:
    """The budgets that a policy other than ours tells apart, in order."""
    free = [size for size, pinned in zip(problem.bytes, problem.pinned, strict=True) if not pinned]
    base, largest = sum(problem.bytes) - sum(free), max(free, default=0)
    if policy != "skip_end":
        return [base + count * largest for count in range(len(free) + 2)]
    sums = {sum(free[i:j]) for i in range(len(free)) for j in range(i + 1, len(free) + 1)}
    return sorted(base + total for total in sums | {0})
