"""The policies, by name: given a problem and a budget, who streams and at which addresses."""

from collections.abc import Callable
from typing import Final, TypeAlias

from tmmu.planner.ring.cyclic import Candidate, choose_cyclic, evaluate_addresses, is_deep_enough
from tmmu.planner.ring.layouts import extent, in_slots, skip_end
from tmmu.planner.ring.problem import RingProblem, StreamedBlocks, streamed_blocks

Policy: TypeAlias = Callable[[RingProblem, int, int], Candidate | None]


def choose_skip_end(problem: RingProblem, capacity: int, depth: int) -> Candidate | None:
    """Everything streams through a ring: offsets once, a layer that would cross its end starts at 0."""
    stream, sizes = _all_of(problem)
    room = capacity - stream.resident_bytes
    return _fitting(stream, skip_end(sizes, room), room, depth)


def choose_slots(problem: RingProblem, capacity: int, depth: int) -> Candidate | None:
    """Everything streams through as many slots of the largest layer as fit, in turn."""
    stream, sizes = _all_of(problem)
    room = capacity - stream.resident_bytes
    slots = max(1, min(len(sizes), room // max(stream.largest_bytes, 1)))
    return _fitting(stream, in_slots(sizes, slots), room, depth)


def choose_double(problem: RingProblem, capacity: int, depth: int) -> Candidate | None:
    """Everything streams through two buffers of the largest layer, in turn."""
    stream, sizes = _all_of(problem)
    room = capacity - stream.resident_bytes
    return _fitting(stream, in_slots(sizes, 2), room, depth) if 2 * stream.largest_bytes <= room else None


def _all_of(problem: RingProblem) -> tuple[StreamedBlocks, list[int]]:
    stream = streamed_blocks(problem, [not pinned for pinned in problem.pinned])
    return stream, [problem.bytes[block] for block in stream.blocks]


def _fitting(stream: StreamedBlocks, address: tuple[int, ...], room: int, depth: int) -> Candidate | None:
    sizes = [stream.problem.bytes[block] for block in stream.blocks]
    choice = evaluate_addresses(stream, address) if extent(sizes, address) <= room else None
    return choice if choice and is_deep_enough(choice, depth) else None


POLICY: Final[dict[str, Policy]] = {
    "cyclic": choose_cyclic,
    "skip_end": choose_skip_end,
    "slots": choose_slots,
    "double": choose_double,
}
