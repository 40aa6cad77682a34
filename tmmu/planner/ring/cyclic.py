"""The policy ``cyclic``: who stays and where the others land, so that a pass takes least time and then moves least."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from tmmu.planner.ring.copies import depth_of, derive_copies, overwritten
from tmmu.planner.ring.layouts import layouts
from tmmu.planner.ring.problem import RingProblem, Stream
from tmmu.planner.ring.residency import streams
from tmmu.planner.ring.timing import Pace, Wait, pace_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A stream, the addresses of its blocks from the start of the ring on, and the pace that follows from them."""

    stream: Stream
    address: tuple[int, ...]
    waits: tuple[tuple[Wait, ...], ...]
    pace: Pace

    @property
    def cost(self) -> tuple[Fraction, int]:
        """What is minimized."""
        return self.pace.time, self.stream.bytes_per_pass


def choose_cyclic(problem: RingProblem, capacity: int, depth: int) -> Choice | None:
    """The best choice found in ``capacity`` bytes whose copies are issued ``depth`` visits ahead; ``None`` if none fits.

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
        bound = pace_of(stream, volume_waits(stream, room)).time
        if best is None or (bound, stream.bytes_per_pass) < best.cost:
            best = _best_of(stream, room, depth, bound, best)
    return best


def _best_of(stream: Stream, room: int, depth: int, bound: Fraction, best: Choice | None) -> Choice | None:
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
    if waits is None:
        return None
    pace = pace_of(stream, [row[0] for row in waits])
    return Choice(stream=stream, address=tuple(address), waits=waits, pace=pace)


def deep_enough(choice: Choice, depth: int) -> bool:
    """Whether its copies are issued ``depth`` visits ahead, or as many as there are others."""
    stream = choice.stream
    return not depth or depth_of(stream, derive_copies(stream, choice.waits)) >= min(depth, len(stream.visits) - 1)


def volume_waits(stream: Stream, room: int) -> list[Wait]:
    """Per copy a visit that it waits for in any layout that ends within ``room``.

    Take the visits back from its own until a block comes twice or they no longer fit together. Two of their blocks
    share bytes, so the later one's copy waits for the earlier one's readers, and this copy comes no sooner.
    """
    visits = [stream.problem.visits[visit] for visit in stream.visits]
    count, size = len(visits), stream.problem.bytes
    found: list[Wait] = []
    for i in range(count):
        blocks, total, turn = {visits[i].block}, size[visits[i].block], i
        while total <= room and turn > i - count:
            turn -= 1
            block = visits[turn].block
            total += room if block in blocks else size[block]
            blocks.add(block)
        turns = range(turn, i)
        first = min(turns, key=lambda t: (t // count, visits[t].last, t))
        found.append((first % count, -(first // count)))
    return found
