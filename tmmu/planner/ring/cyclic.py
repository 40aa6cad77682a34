"""The policy ``cyclic``: which blocks are resident and where the others land, for the shortest pass.

A search over a fixed list of candidates: residency (``residency.py``) times addresses (``layouts.py``). Each is
evaluated exactly: addresses give the waits of every copy (``copies.py``), waits the time of a pass (``timing.py``).

Invariants that callers rely on:

- the list of candidates does not depend on the capacity, which only removes those that do not fit;
- a candidate is skipped only where a lower bound shows that it is no better than the best so far.

So more capacity never makes a pass longer, and as the layouts of the other policies are in the list, none of them is
ever faster in the same capacity. Least time first, then fewest bytes moved; ties go to the earlier candidate.
Terminates: both lists are finite (at most 4096 residencies and some hundred layouts for each).
"""

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
    """Streamed blocks with their addresses (bytes from the start of the streamed part), waits and time of a pass."""

    streamed: StreamedBlocks
    address: tuple[int, ...]
    waits: tuple[tuple[Wait, ...], ...]
    pass_time: PassTime

    @property
    def cost(self) -> tuple[int, int]:
        """What is minimized: nanoseconds of a pass, then bytes moved."""
        return self.pass_time.ns, self.streamed.bytes_per_pass


def choose_cyclic(problem: RingProblem, capacity: int, depth: int) -> Candidate | None:
    """The best candidate in ``capacity`` bytes whose copies are issued at least ``depth`` visits ahead, if any."""
    best: Candidate | None = None
    for streamed in residency_candidates(problem):
        # Residencies come by their lower bound, so the first one that cannot improve on the best ends the search.
        if best and (streamed.floor_ns, streamed.bytes_per_pass) >= best.cost:
            break
        room = capacity - streamed.resident_bytes
        if room < streamed.largest_bytes:
            continue
        bound = pass_time_bound(streamed, room)
        if bound is not None and (best is None or (bound, streamed.bytes_per_pass) < best.cost):
            best = _best_layout(streamed, room, depth, bound, best)
    return best


def _best_layout(
    streamed: StreamedBlocks, room: int, depth: int, bound: int, best: Candidate | None
) -> Candidate | None:
    """The better of ``best`` and the layouts of this residency, none of which is faster than ``bound``."""
    all_stream = not any(p == (b in streamed.blocks) for b, p in enumerate(streamed.problem.pinned))
    for address in candidate_layouts(streamed, room, all_stream=all_stream) if streamed.blocks else ((),):
        candidate = evaluate_addresses(streamed, address)
        if candidate and (best is None or candidate.cost < best.cost) and is_deep_enough(candidate, depth):
            best = candidate
            if best.pass_time.ns == bound:
                break
    return best


def evaluate_addresses(streamed: StreamedBlocks, addresses: Sequence[int]) -> Candidate | None:
    """The candidate with these addresses, one per streamed block; ``None`` where two visits need the same bytes."""
    by_block = [0] * len(streamed.problem.bytes)
    for block, address in zip(streamed.blocks, addresses, strict=True):
        by_block[block] = address
    waits = overwritten_visits(streamed, by_block)
    time = steady_pass_time(streamed, [row[0] for row in waits])
    return Candidate(streamed=streamed, address=tuple(addresses), waits=waits, pass_time=time) if time else None


def is_deep_enough(candidate: Candidate, depth: int) -> bool:
    """Whether every copy is issued ``depth`` visits ahead, or as many as any layout allows."""
    if not depth:
        return True
    streamed = candidate.streamed
    distances = prefetch_distances(streamed, derive_copies(streamed, candidate.waits))
    limits = max_prefetch_distances(streamed)
    return all(distance >= min(depth, limit) for distance, limit in zip(distances, limits, strict=True))


def pass_time_bound(streamed: StreamedBlocks, room: int) -> int | None:
    """A lower bound on the nanoseconds of a pass in any layout of ``room`` bytes; ``None`` where there is no layout.

    Take the visits back from a copy's own until a block repeats or they no longer fit together. In every layout two of
    their blocks share bytes, so the later one's copy waits for the earlier one's readers; this copy comes no sooner, as
    copies are in order. So in every layout it waits at least for the first of these visits to end.
    """
    visits = [streamed.problem.visits[visit] for visit in streamed.visits]
    count, waits = len(visits), list[Wait]()
    for i, conflict in enumerate(nearest_conflicts(streamed, room)):
        first = min(range(conflict, i), key=lambda t: (t // count, visits[t].last, t))
        waits.append((first % count, -(first // count)))
    time = steady_pass_time(streamed, waits)
    return time.ns if time else None
