"""The policy ``cyclic``: who stays and where the others land, so that a pass takes least time and then moves least."""

from collections.abc import Sequence
from dataclasses import dataclass

from tmmu.planner.ring.arcs import nearest_conflicts
from tmmu.planner.ring.copies import derive_copies, max_prefetch_distances, overwritten_visits, prefetch_distances
from tmmu.planner.ring.layouts import candidate_layouts
from tmmu.planner.ring.problem import RingProblem, StreamedBlocks
from tmmu.planner.ring.residency import residency_candidates
from tmmu.planner.ring.timing import PassTime, Wait, steady_pass_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A stream, the addresses of its blocks from the ring's start on, and the pace that follows from them."""

    streamed: StreamedBlocks
    address: tuple[int, ...]
    waits: tuple[tuple[Wait, ...], ...]
    pass_time: PassTime

    @property
    def cost(self) -> tuple[int, int]:
        """What is minimized."""
        return self.pass_time.ns, self.streamed.bytes_per_pass


def choose_cyclic(problem: RingProblem, capacity: int, depth: int) -> Candidate | None:
    """The best choice found in ``capacity`` bytes whose copies are issued ``depth`` visits ahead, if any.

    The candidates do not depend on ``capacity``, and one is left out only where a bound shows it to be no better:
    more capacity never makes a pass longer. Least time first, then fewest bytes moved, then the earlier candidate.
    """
    best: Candidate | None = None
    for stream in residency_candidates(problem):
        if best and (stream.floor_ns, stream.bytes_per_pass) >= best.cost:
            break
        room = capacity - stream.resident_bytes
        if room < stream.largest_bytes:
            continue
        bound = pass_time_bound(stream, room)
        if bound is not None and (best is None or (bound, stream.bytes_per_pass) < best.cost):
            best = _best_of(stream, room, depth, bound, best)
    return best


def _best_of(stream: StreamedBlocks, room: int, depth: int, bound: int, best: Candidate | None) -> Candidate | None:
    """The better of ``best`` and what this stream has to offer; ``bound`` is the least time that it can."""
    bare = not any(p == (b in stream.blocks) for b, p in enumerate(stream.problem.pinned))
    for address in candidate_layouts(stream, room, bare=bare) if stream.blocks else ((),):
        choice = evaluate_addresses(stream, address)
        if choice and (best is None or choice.cost < best.cost) and is_deep_enough(choice, depth):
            best = choice
            if best.pass_time.ns == bound:
                break
    return best


def evaluate_addresses(stream: StreamedBlocks, address: Sequence[int]) -> Candidate | None:
    """The choice of these addresses, one per block of ``stream``; ``None`` where two visits need the same bytes."""
    where = [0] * len(stream.problem.bytes)
    for block, at in zip(stream.blocks, address, strict=True):
        where[block] = at
    waits = overwritten_visits(stream, where)
    pace = steady_pass_time(stream, [row[0] for row in waits])
    return Candidate(streamed=stream, address=tuple(address), waits=waits, pass_time=pace) if pace else None


def is_deep_enough(choice: Candidate, depth: int) -> bool:
    """Whether its copies are issued ``depth`` visits ahead, or as many as there are since the block's last one."""
    if not depth:
        return True
    stream = choice.streamed
    ahead = prefetch_distances(stream, derive_copies(stream, choice.waits))
    return all(found >= min(depth, most) for found, most in zip(ahead, max_prefetch_distances(stream), strict=True))


def pass_time_bound(stream: StreamedBlocks, room: int) -> int | None:
    """A bound on the time of a pass in any layout that ends within ``room``; ``None`` where there is none.

    Take the visits back from a copy's own until a block comes twice or they no longer fit together. Two of their blocks
    share bytes, so the later one's copy waits for the earlier one's readers, and this copy comes no sooner.
    """
    visits = [stream.problem.visits[visit] for visit in stream.visits]
    count, found = len(visits), list[Wait]()
    for i, turn in enumerate(nearest_conflicts(stream, room)):
        turns = range(turn, i)
        first = min(turns, key=lambda t: (t // count, visits[t].last, t))
        found.append((first % count, -(first // count)))
    pace = steady_pass_time(stream, found)
    return pace.ns if pace else None
