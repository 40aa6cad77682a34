"""What two plans hold differently, buffer by buffer, and why one peak is above the other.

The peaks of two programs are at two positions that need not correspond, so one of them is chosen, the larger, and its
counterpart is looked up in the other program. At these two positions every buffer that is live on one side alone, or
with other bytes, is a ``Change`` with a reason. The account is exact: see ``PeakChange``.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from tmmu.compare.align import Pair
from tmmu.compare.diff_side import DiffSide, Moment, Origin
from tmmu.compare.match import BufferPair, Matching, PlannedGraph, match_graphs
from tmmu.compare.timeline import peak_level
from tmmu.ir.ids import BufferId
from tmmu.ir.plan import segment_bytes

T = TypeVar("T")

CAME: Final = "came"
WENT: Final = "went"
GREW: Final = "grew"
SHRANK: Final = "shrank"
LIVES_LONGER: Final = "lives longer"
DIES_EARLIER: Final = "dies earlier"
BORN_EARLIER: Final = "born earlier"
BORN_LATER: Final = "born later"
NO_LONGER_IN_PLACE: Final = "no longer in place"
NOW_IN_PLACE: Final = "now in place"
REASONS: Final = (
    *(CAME, WENT, GREW, SHRANK, LIVES_LONGER, DIES_EARLIER),
    *(BORN_EARLIER, BORN_LATER, NO_LONGER_IN_PLACE, NOW_IN_PLACE),
)


# The field names of ``Change`` and ``PeakChange`` are keys of tmmu diff --json.
@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One buffer that is held differently: ``bytes`` more (or less), and ``why``, one of ``REASONS``.

    ``before`` and ``after`` are the buffer on either side, ``None`` where that side has none.
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

    ``before`` and ``after`` are corresponding moments of both programs: of the larger peak, and its counterpart. There,
    ``bytes`` = the sum of ``changes`` - ``room`` + ``packing``: ``room`` is what the side that is not at its peak has
    below it (negative where that is ``after``), ``packing`` what more is lost between buffers. ``moved`` buffers of
    ``moved_bytes`` are held alike at these moments, and were not live at the peak of ``before``.
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
    """The stack's peak, the changes of persistent buffers, and the totals over all placed buffers.

    ``totals`` has, by reason, the number of placed buffers that it is true of, and their bytes more or less.
    """

    peak: PeakChange
    persistent: tuple[Change, ...]
    totals: Mapping[str, tuple[int, int]]


def difference(before: PlannedGraph, after: PlannedGraph) -> Difference:
    """What ``after`` holds otherwise than ``before``. O(N log N) for programs that are much alike."""
    old, new, matching = DiffSide(before), DiffSide(after), match_graphs(before, after)
    placed = tuple((a, b) for a, b in matching.buffers if a in old.row and b in new.row)
    return Difference(
        peak=_peak_change(old, new, matching, placed),
        persistent=tuple(_persistent_changes(old, new, placed)),
        totals=_totals(old, new, matching, placed),
    )


def _peak_change(old: DiffSide, new: DiffSide, matching: Matching, placed: Sequence[BufferPair]) -> PeakChange:
    (old_peak, old_bytes), (new_peak, new_bytes) = peak_level(old.stack), peak_level(new.stack)
    old_size, new_size = (segment_bytes(side.plan.arenas, "stack") for side in (old, new))
    if (new_bytes, new_size) >= (old_bytes, old_size):
        then, now = _counterpart(old, new, _swap(placed), matching.ops, new_peak), new_peak
    else:
        then, now = old_peak, _counterpart(new, old, placed, _swap(matching.ops), old_peak)
    before, after = old.moment(then), new.moment(now)
    old_live, new_live, live_at_peak = old.live_bytes(then), new.live_bytes(now), old.live_bytes(old_peak)
    moved = [b for a, b in placed if a in old_live and old_live[a] == new_live.get(b) and a not in live_at_peak]
    return PeakChange(
        bytes=new_size - old_size,
        before=before,
        after=after,
        fullest_before=old.moment(old_peak),
        fullest_after=new.moment(new_peak),
        room=(old_bytes - before.bytes) - (new_bytes - after.bytes),
        packing=(new_size - old_size) - (new_bytes - old_bytes),
        moved=len(moved),
        moved_bytes=sum(new_live[b] for b in moved),
        changes=tuple(_largest_first(_live_changes(old, new, placed, (then, now)))),
    )


def _swap(pairs: Iterable[tuple[T, T]]) -> list[tuple[T, T]]:
    return [(b, a) for a, b in pairs]


def _counterpart(
    side: DiffSide, peaked: DiffSide, placed: Sequence[BufferPair], ops: Sequence[Pair], position: int
) -> int:
    """The position of ``side`` that corresponds to ``position`` of ``peaked``.

    ``ops`` are pairs (side, peaked), ``placed`` pairs (peaked, side). For an op that only ``peaked`` has, the
    candidates are the ops around it that both have and the peak between them: the one with the least distance wins.
    """
    index = bisect_right(ops, position, key=lambda pair: pair[1])
    if index and ops[index - 1][1] == position:
        return ops[index - 1][0]
    low = ops[index - 1][0] if index else 0
    high = ops[index][0] if index < len(ops) else max(side.steps - 1, 0)
    own = dict(placed)
    expected = {own.get(buffer, BufferId(-1)): size for buffer, size in peaked.live_bytes(position).items()}
    candidates = sorted({low, side.peak_within(low, high), high})
    return min(candidates, key=lambda candidate: (_distance(side.live_bytes(candidate), expected), candidate))


def _distance(live: Mapping[BufferId, int], expected: Mapping[BufferId, int]) -> int:
    """Bytes in which two sets of live buffers differ. Id -1 stands for what ``live`` cannot have, and is free."""
    missing = sum(abs(size - live.get(buffer, 0)) for buffer, size in expected.items() if buffer >= 0)
    return missing + sum(size for buffer, size in live.items() if buffer not in expected)


def _live_changes(old: DiffSide, new: DiffSide, placed: Sequence[BufferPair], moments: Pair) -> Iterator[Change]:
    """A change per buffer that makes a difference to the live bytes at two moments."""
    then, now = moments
    old_live, new_live = old.live_bytes(then), new.live_bytes(now)
    new_of, old_of = dict(placed), dict(_swap(placed))
    for b, size in new_live.items():
        a = old_of.get(b)
        more = size - old_live.get(a, 0) if a is not None else size
        if more:
            why = CAME if a is None else _why_more(old.span(a), then, more, both=a in old_live)
            yield _change(old, new, why, more, (a, b))
    for a, size in old_live.items():
        match = new_of.get(a)
        if match is None or match not in new_live:
            why = WENT if match is None else _why_less(new.span(match), now)
            yield _change(old, new, why, -size, (a, match))


def _why_more(span: Pair, then: int, more: int, *, both: bool) -> str:
    if both:
        return GREW if more > 0 else SHRANK
    if span[0] > then:
        return BORN_EARLIER
    return LIVES_LONGER if span[1] <= then else NO_LONGER_IN_PLACE


def _why_less(span: Pair, now: int) -> str:
    if span[0] > now:
        return BORN_LATER
    return DIES_EARLIER if span[1] <= now else NOW_IN_PLACE


def _change(old: DiffSide, new: DiffSide, why: str, size: int, pair: tuple[BufferId | None, BufferId | None]) -> Change:
    a, b = pair
    before = None if a is None else old.origin(a)
    return Change(why=why, bytes=size, before=before, after=None if b is None else new.origin(b))


def _largest_first(changes: Iterable[Change]) -> list[Change]:
    return sorted(changes, key=lambda c: (-abs(c.bytes), REASONS.index(c.why), c.after is None, c.origin.id))


def _persistent_changes(old: DiffSide, new: DiffSide, placed: Sequence[BufferPair]) -> list[Change]:
    """The weights, constants and state that came, went, grew or shrank."""
    old_of, new_of = dict(_swap(placed)), dict(placed)
    rows: list[tuple[BufferId | None, BufferId | None]] = [(old_of.get(b), b) for b in new.row if new.is_persistent(b)]
    rows += [(a, None) for a in old.row if old.is_persistent(a) and a not in new_of]
    sized = ((a, b, (0 if b is None else new.bytes(b)) - (0 if a is None else old.bytes(a))) for a, b in rows)
    return _largest_first(_change(old, new, _why_size(a, b, more), more, (a, b)) for a, b, more in sized if more)


def _why_size(a: BufferId | None, b: BufferId | None, more: int) -> str:
    if a is None or b is None:
        return CAME if a is None else WENT
    return GREW if more > 0 else SHRANK


def _totals(
    old: DiffSide, new: DiffSide, matching: Matching, placed: Sequence[BufferPair]
) -> Mapping[str, tuple[int, int]]:
    """How many buffers came, went, grew, shrank, live longer or die earlier, and what bytes that is."""
    sums = dict.fromkeys((CAME, WENT, GREW, SHRANK, LIVES_LONGER, DIES_EARLIER), (0, 0))

    def count(why: str, size: int) -> None:
        sums[why] = (sums[why][0] + 1, sums[why][1] + size)

    old_time = _old_time(old, new, matching)
    for a, b in placed:
        more = new.bytes(b) - old.bytes(a)
        if more:
            count(GREW if more > 0 else SHRANK, more)
        if not old.is_persistent(a) and not new.is_persistent(b):
            later = old_time(new.span(b)[1] - 1) - 2 * (old.span(a)[1] - 1)
            if later:
                count(LIVES_LONGER if later > 0 else DIES_EARLIER, new.bytes(b) if later > 0 else -new.bytes(b))
    old_placed, new_placed = {a for a, _ in placed}, {b for _, b in placed}
    for b in new.row:
        if b not in new_placed:
            count(CAME, new.bytes(b))
    for a in old.row:
        if a not in old_placed:
            count(WENT, -old.bytes(a))
    return sums


def _old_time(old: DiffSide, new: DiffSide, matching: Matching) -> Callable[[int], int]:
    """From a position of ``new`` to twice that of ``old``; odd for an op that ``old`` lacks, after the last it has."""
    # Twice the position leaves a value between two ops that both have for all ops that were inserted between them.
    times, last = [-1] * new.steps, -1
    position = {j: i for i, j in matching.ops}
    for j in range(new.steps):
        last = 2 * position[j] if j in position else last | 1
        times[j] = last

    def old_time(new_position: int) -> int:
        """Positions of a mirrored half, those of gradients, are mirrored too."""
        if new_position < new.steps:
            return times[new_position]
        return 2 * (2 * old.steps - 1) - times[2 * new.steps - 1 - new_position]

    return old_time
