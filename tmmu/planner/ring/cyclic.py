"""The policy ``cyclic``: who stays and where the others land, so that a pass takes least time and then moves least."""

from collections.abc import Sequence
from dataclasses import dataclass

from tmmu.planner.ring.arcs import too_far_back
from tmmu.planner.ring.copies import derive_copies, overwritten, visits_ahead, visits_since
from tmmu.planner.ring.layouts import layouts
from tmmu.planner.ring.problem import RingProblem, Stream
from tmmu.planner.ring.residency import streams
from tmmu.planner.ring.timing import Pace, Wait, pace_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A stream, the addresses of its blocks from the ring's start on, and the pace that follows from them."""

    stream: Stream
    address: tuple[int, ...]
    waits: tuple[tuple[Wait, ...], ...]
    pace: Pace

    @property
    def cost(self) -> tuple[int, int]:
        """What is minimized."""
        return self.pace.time, self.stream.bytes_per_pass


def choose_cyclic(problem: RingProblem, capacity: int, depth: int) -> Choice | None:
    """The best choice found in ``capacity`` bytes whose copies are issued ``depth`` visits ahead, if any.

    The candidates do not depend on ``capacity``, and one is left out only where a bound shows it to be no better:
    more capacity never makes a pass longer. Least time first, then fewest bytes moved, then the earlier candidate.
    """
    best: Choice | None = None
    for stream in streams(problem):
        if best and (stream.floor_ns, stream.bytes_per_pass) >= best.cost:
            break
        room = capacity - stream.resident_bytes
        if room < stream.largest:
            continue
        bound = least_time(stream, room)
        if bound is not None and (best is None or (bound, stream.bytes_per_pass) < best.cost):
            best = _best_of(stream, room, depth, bound, best)
    return best


def _best_of(stream: Stream, room: int, depth: int, bound: int, best: Choice | None) -> Choice | None:
    """The better of ``best`` and what this stream has to offer; ``bound`` is the least time that it can."""
    bare = not any(p == (b in stream.blocks) for b, p in enumerate(stream.problem.pinned))
    for address in layouts(stream, room, bare=bare) if stream.blocks else ((),):
        choice = choice_of(stream, address)
        if choice and (best is None or choice.cost < best.cost) and deep_enough(choice, depth):
            best = choice
            if best.pace.time == bound:
                break
    return best


def choice_of(stream: Stream, address: Sequence[int]) -> Choice | None:
    """The choice of these addresses, one per block of ``stream``; ``None`` where two visits need the same bytes."""
    where = [0] * len(stream.problem.bytes)
    for block, at in zip(stream.blocks, address, strict=True):
        where[block] = at
    waits = overwritten(stream, where)
    pace = pace_of(stream, [row[0] for row in waits])
    return Choice(stream=stream, address=tuple(address), waits=waits, pace=pace) if pace else None


def deep_enough(choice: Choice, depth: int) -> bool:
    """Whether its copies are issued ``depth`` visits ahead, or as many as there are since the block's last one."""
    if not depth:
        return True
    stream = choice.stream
    ahead = visits_ahead(stream, derive_copies(stream, choice.waits))
    return all(found >= min(depth, most) for found, most in zip(ahead, visits_since(stream), strict=True))


def least_time(stream: Stream, room: int) -> int | None:
    """A bound on the time of a pass in any layout that ends within ``room``; ``None`` where there is none.

    Take the visits back from a copy's own until a block comes twice or they no longer fit together. Two of their blocks
    share bytes, so the later one's copy waits for the earlier one's readers, and this copy comes no sooner.
    """
    visits = [stream.problem.visits[visit] for visit in stream.visits]
    count, found = len(visits), list[Wait]()
    for i, turn in enumerate(too_far_back(stream, room)):
        turns = range(turn, i)
        first = min(turns, key=lambda t: (t // count, visits[t].last, t))
        found.append((first % count, -(first // count)))
    pace = pace_of(stream, found)
    return pace.time if pace else None
