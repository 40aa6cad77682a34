"""The table of policies: from a problem, a capacity and a depth to a candidate, if there is one."""

from collections.abc import Callable
from typing import Final, TypeAlias

from tmmu.planner.ring.cyclic import Candidate, choose_cyclic, evaluate_addresses, is_deep_enough
from tmmu.planner.ring.layouts import extent, in_slots, skip_end
from tmmu.planner.ring.problem import RingProblem, StreamedBlocks, streamed_blocks

Policy: TypeAlias = Callable[[RingProblem, int, int], Candidate | None]


def choose_skip_end(problem: RingProblem, capacity: int, depth: int) -> Candidate | None:
    """All blocks stream through a ring of bytes; one that would cross its end starts at 0."""
    streamed, sizes = _all_streamable(problem)
    room = capacity - streamed.resident_bytes
    return _if_fits(streamed, skip_end(sizes, room), room, depth)


def choose_slots(problem: RingProblem, capacity: int, depth: int) -> Candidate | None:
    """All blocks stream through as many slots of the largest block as fit, round robin."""
    streamed, sizes = _all_streamable(problem)
    room = capacity - streamed.resident_bytes
    slots = max(1, min(len(sizes), room // max(streamed.largest_bytes, 1)))
    return _if_fits(streamed, in_slots(sizes, slots), room, depth)


def choose_double(problem: RingProblem, capacity: int, depth: int) -> Candidate | None:
    """Double buffering: all blocks stream through two slots of the largest block, in turn."""
    streamed, sizes = _all_streamable(problem)
    room = capacity - streamed.resident_bytes
    return _if_fits(streamed, in_slots(sizes, 2), room, depth) if 2 * streamed.largest_bytes <= room else None


def _all_streamable(problem: RingProblem) -> tuple[StreamedBlocks, list[int]]:
    streamed = streamed_blocks(problem, [not pinned for pinned in problem.pinned])
    return streamed, [problem.bytes[block] for block in streamed.blocks]


def _if_fits(streamed: StreamedBlocks, addresses: tuple[int, ...], room: int, depth: int) -> Candidate | None:
    sizes = [streamed.problem.bytes[block] for block in streamed.blocks]
    candidate = evaluate_addresses(streamed, addresses) if extent(sizes, addresses) <= room else None
    return candidate if candidate and is_deep_enough(candidate, depth) else None


POLICY: Final[dict[str, Policy]] = {
    "cyclic": choose_cyclic,
    "skip_end": choose_skip_end,
    "slots": choose_slots,
    "double": choose_double,
}
