"""What two plans hold differently, buffer by buffer, and why the one peak is above the other."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tmmu.compare.align import Pair
from tmmu.compare.diff_side import Moment, Origin, Side
from tmmu.compare.match import Matching, Planned, match
from tmmu.compare.timeline import fullest
from tmmu.ir.plan import segment_bytes

CAME: Final = "came"
WENT: Final = "went"
GREW: Final = "grew"
SHRANK: Final = "shrank"
LONGER: Final = "lives longer"
SHORTER: Final = "dies earlier"
EARLIER: Final = "born earlier"
LATER: Final = "born later"
APART: Final = "no longer in place"
IN_PLACE: Final = "now in place"
WHYS: Final = (CAME, WENT, GREW, SHRANK, LONGER, SHORTER, EARLIER, LATER, APART, IN_PLACE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One buffer that is held differently: ``bytes`` more (or less), and ``why``, one of ``WHYS``.

    ``before`` and ``after`` are the buffer on either side, as far as it is there.
    """

    why: str
    bytes: int
    before: Origin | None
    after: Origin | None

    @property
    def origin(self) -> Origin:
        """The buffer as it is now, or as it was where it is gone."""
        origin = self.after or self.before
        assert origin is not None
        return origin


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakChange:
    """Why the stack takes ``bytes`` more, or less.

    ``before`` and ``after`` are one moment of both programs: where the larger of the two is fullest. There,
    ``bytes`` = the sum of ``changes`` - ``room`` + ``packing``: ``room`` is what the one that is not at its fullest is
    below it (negative where that is ``after``), ``packing`` what more is lost between buffers. ``moved`` buffers of
    ``moved_bytes`` are held alike at this moment, and were not where ``before`` was fullest.
    """

    bytes: int
    before: Moment
    after: Moment
    fullest_before: Moment
    fullest_after: Moment
    room: int
    packing: int
    moved: int
    moved_bytes: int
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """All of it: the stack's peak, what is kept all the time, and how every placed buffer fared.

    ``fared`` is by one of ``WHYS``: of how many placed buffers that is true, and their bytes more or less.
    """

    peak: PeakChange
    kept: tuple[Change, ...]
    fared: Mapping[str, tuple[int, int]]


def difference(before: Planned, after: Planned) -> Difference:
    """What ``after`` holds otherwise than ``before``. O(N log N) for programs that are much alike."""
    one, other, found = Side(before), Side(after), match(before, after)
    placed = tuple((a, b) for a, b in found.buffers if a in one.row and b in other.row)
    return Difference(
        peak=_peak(one, other, found, placed),
        kept=tuple(_kept(one, other, placed)),
        fared=_fared(one, other, found, placed),
    )


def _peak(one: Side, other: Side, found: Matching, placed: Sequence[Pair]) -> PeakChange:
    (at_one, most_one), (at_other, most_other) = fullest(one.stack), fullest(other.stack)
    sizes = segment_bytes(one.plan.arenas, "stack"), segment_bytes(other.plan.arenas, "stack")
    if (most_other, sizes[1]) >= (most_one, sizes[0]):
        then, now = _counterpart(one, other, [(b, a) for a, b in placed], found.ops, at_other), at_other
    else:
        back = [(j, i) for i, j in found.ops]
        then, now = at_one, _counterpart(other, one, placed, back, at_one)
    before, after = one.moment(then), other.moment(now)
    room = (most_one - before.bytes) - (most_other - after.bytes)
    grown = sizes[1] - sizes[0]
    held, full = (one.held(then), other.held(now)), one.held(at_one)
    moved = [b for a, b in placed if a in held[0] and held[0][a] == held[1].get(b) and a not in full]
    return PeakChange(
        bytes=grown,
        before=before,
        after=after,
        fullest_before=one.moment(at_one),
        fullest_after=other.moment(at_other),
        room=room,
        packing=grown - (most_other - most_one),
        moved=len(moved),
        moved_bytes=sum(held[1][b] for b in moved),
        changes=tuple(_sorted(_held(one, other, placed, then, now))),
    )


def _counterpart(side: Side, full: Side, placed: Sequence[Pair], pairs: Sequence[Pair], position: int) -> int:
    """The position of ``side`` at which ``full`` is at ``position``. ``pairs`` of ops are (side, full), others not.

    Of an op that only ``full`` has: of the ops around it that both have, and the fullest moment between them, the
    one that differs least.
    """
    index = bisect_right(pairs, position, key=lambda pair: pair[1])
    if index and pairs[index - 1][1] == position:
        return pairs[index - 1][0]
    low = pairs[index - 1][0] if index else 0
    high = pairs[index][0] if index < len(pairs) else max(side.steps - 1, 0)
    mine, wanted = dict(placed), full.held(position)
    there = {mine.get(buffer, -1): size for buffer, size in wanted.items()}
    near = sorted({low, side.fullest_within(low, high), high})
    return min(near, key=lambda at: (_distance(side.held(at), there), at))


def _distance(held: Mapping[int, int], wanted: Mapping[int, int]) -> int:
    """Bytes by which what is held differs from what is wanted, buffer by buffer; what nobody could hold is left out."""
    missing = sum(abs(size - held.get(buffer, 0)) for buffer, size in wanted.items() if buffer >= 0)
    return missing + sum(size for buffer, size in held.items() if buffer not in wanted)


def _held(one: Side, other: Side, placed: Sequence[Pair], then: int, now: int) -> Iterator[Change]:
    """Every buffer that makes a difference to what is held at two moments."""
    held, holds = one.held(then), other.held(now)
    theirs, mine = dict(placed), {b: a for a, b in placed}
    for b, size in holds.items():
        a = mine.get(b)
        more = size - held.get(a, 0) if a is not None else size
        if more:
            why = CAME if a is None else _why_more(one.span(a), then, more, both=a in held)
            yield _change(one, other, why, more, (a, b))
    for a, size in held.items():
        gone = theirs.get(a)
        if gone is None or gone not in holds:
            why = WENT if gone is None else _why_less(other.span(gone), now)
            yield _change(one, other, why, -size, (a, gone))


def _why_more(span: Pair, then: int, more: int, *, both: bool) -> str:
    if both:
        return GREW if more > 0 else SHRANK
    if span[0] > then:
        return EARLIER
    return LONGER if span[1] <= then else APART


def _why_less(span: Pair, now: int) -> str:
    if span[0] > now:
        return LATER
    return SHORTER if span[1] <= now else IN_PLACE


def _change(one: Side, other: Side, why: str, size: int, pair: tuple[int | None, int | None]) -> Change:
    a, b = pair
    before = None if a is None else one.origin(a)
    return Change(why=why, bytes=size, before=before, after=None if b is None else other.origin(b))


def _sorted(changes: Iterator[Change]) -> list[Change]:
    """Largest first."""
    return sorted(changes, key=lambda c: (-abs(c.bytes), WHYS.index(c.why), c.after is None, c.origin.id))


def _kept(one: Side, other: Side, placed: Sequence[Pair]) -> Iterator[Change]:
    """What came, went, grew or shrank of what is there from first to last: weights, constants, state."""
    mine, theirs = {b: a for a, b in placed}, dict(placed)
    rows: list[tuple[int | None, int | None]] = [(mine.get(b), b) for b in other.row if other.persists(b)]
    rows += [(a, None) for a in one.row if one.persists(a) and a not in theirs]
    changes = ((a, b, (0 if b is None else other.bytes(b)) - (0 if a is None else one.bytes(a))) for a, b in rows)
    yield from _sorted(_change(one, other, _why(a, b, more), more, (a, b)) for a, b, more in changes if more)


def _why(a: int | None, b: int | None, more: int) -> str:
    if a is None or b is None:
        return CAME if a is None else WENT
    return GREW if more > 0 else SHRANK


def _fared(one: Side, other: Side, found: Matching, placed: Sequence[Pair]) -> Mapping[str, Pair]:
    """How many buffers came, went, grew, shrank, live longer or die earlier, and what bytes that is."""
    sums = dict.fromkeys((CAME, WENT, GREW, SHRANK, LONGER, SHORTER), (0, 0))

    def count(why: str, size: int) -> None:
        sums[why] = (sums[why][0] + 1, sums[why][1] + size)

    clock = _clock(one, other, found)
    for a, b in placed:
        more = other.bytes(b) - one.bytes(a)
        if more:
            count(GREW if more > 0 else SHRANK, more)
        if not one.persists(a) and not other.persists(b):
            later = clock(other.span(b)[1] - 1) - 2 * (one.span(a)[1] - 1)
            if later:
                count(LONGER if later > 0 else SHORTER, other.bytes(b) if later > 0 else -other.bytes(b))
    theirs, mine = {a for a, _ in placed}, {b for _, b in placed}
    for b in other.row:
        if b not in mine:
            count(CAME, other.bytes(b))
    for a in one.row:
        if a not in theirs:
            count(WENT, -one.bytes(a))
    return sums


def _clock(one: Side, other: Side, found: Matching) -> Callable[[int], int]:
    """From a position of ``other`` to twice that of ``one``; one more for what runs after an op that both have."""
    times, last = [-1] * other.steps, -1
    position = {j: i for i, j in found.ops}
    for j in range(other.steps):
        last = 2 * position[j] if j in position else last | 1
        times[j] = last

    def clock(at: int) -> int:
        """Positions of a mirrored half are mirrored."""
        return times[at] if at < other.steps else 2 * (2 * one.steps - 1) - times[2 * other.steps - 1 - at]

    return clock
