"""Orders of a step's rows that may need fewer bytes than the program's: list schedules, each a row of a table.

Rows are numbered in a legal order. A *free-first* schedule runs at once what leaves no more bytes than it found, and
otherwise the row that comes first; a *late* one, made from the end, runs as late as it can what only takes bytes. A row
that frees once will free until it runs, as more buffers come to their last use and none to another one, so that a heap
with one entry for each row and one more for each that frees is enough: O((rows + edges) log rows). A row that takes or
sets the random state keeps its place among its like.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

from tmmu.planner.fit.step_facts import Ragged, StepFacts

SMALL_SHARE: Final = 8
"""What takes at most one in so many bytes of what takes most is small."""

Order: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowUses:
    """What the rows of a graph read and write of the buffers that are there during the step only, and what waits.

    ``first``: the order in which they run as it is.
    """

    size: Sequence[int]
    reads: Sequence[frozenset[int]]
    writes: Sequence[frozenset[int]]
    outputs: frozenset[int]
    before: Sequence[frozenset[int]]
    after: Sequence[frozenset[int]]
    first: Order

    def __len__(self) -> int:
        return len(self.reads)

    @property
    def places(self) -> list[int]:
        """Per row, its place as it is."""
        return places_of(self.first)


def places_of(order: Order) -> list[int]:
    """Per row, its place in an order."""
    places = [0] * len(order)
    for place, row in enumerate(order):
        places[row] = place
    return places


def row_uses(facts: StepFacts, first: Order) -> RowUses:
    """Of a step that runs in the order ``first``, which its edges allow; ops that are not known stay in it."""
    rows = len(first)
    after = [set(row) for row in facts.after]
    for one, next_one in pairwise(row for row in first if not facts.alone[row]):
        after[one].add(next_one)
    before: list[set[int]] = [set() for _ in after]
    for row, following in enumerate(after):
        for later in following:
            before[later].add(row)
    return RowUses(
        size=facts.size.tolist(),
        reads=_cells(facts.read, rows),
        writes=_cells(facts.write, rows),
        outputs=frozenset(facts.outputs),
        before=[frozenset(row) for row in before],
        after=[frozenset(row) for row in after],
        first=first,
    )


def _cells(columns: Ragged, rows: int) -> list[frozenset[int]]:
    at, of = columns.at.tolist(), columns.of.tolist()
    return [frozenset(of[at[row] : at[row + 1]]) for row in range(rows)]


def as_it_is(uses: RowUses) -> Order:
    """The order of the rows as they run."""
    return uses.first


def free_first(uses: RowUses, place: Sequence[int] = (), *, spare: int = -1) -> Order:
    """What frees as much as it takes as soon as it can, all else in the order of its places (default: as it is).

    A row that takes at most ``spare`` bytes, which only rows after it read that make nothing, frees together with them.
    """
    place = place or uses.places
    users: dict[int, set[int]] = {}
    for row in range(len(uses)):
        for buffer in uses.reads[row] | uses.writes[row]:
            users.setdefault(buffer, set()).add(row)
    alive: set[int] = set()
    ran: set[int] = set()

    def net(row: int) -> int:
        touched = uses.reads[row] | uses.writes[row]
        takes = sum(uses.size[buffer] for buffer in uses.writes[row] if buffer not in alive)
        frees = sum(uses.size[b] for b in touched if len(users[b]) == 1 and b not in uses.outputs)
        return takes * (takes > spare or not passes_on(row)) - frees

    def passes_on(row: int) -> bool:
        """Whether rows that wait for nothing else take all that this one makes, and make nothing more."""
        results = uses.writes[row]
        readers = set[int]().union(*(users[buffer] for buffer in results)) - {row}
        is_alone = bool(readers) and uses.outputs.isdisjoint(results)
        return is_alone and all(
            uses.writes[reader] <= results and uses.before[reader] <= ran | {row} | readers for reader in readers
        )

    def done(row: int) -> set[int]:
        """The rows that may free now."""
        ran.add(row)
        changed = set[int]()
        for buffer in uses.reads[row] | uses.writes[row]:
            users[buffer].discard(row)
            if buffer not in alive or len(users[buffer]) == 1:
                changed |= users[buffer]
            alive.add(buffer)
        return changed

    return tuple(_listed(uses.before, uses.after, place, net, done))


def late(uses: RowUses, place: Sequence[int] = (), *, updates_last: bool = False) -> Order:
    """What only takes bytes as late as it can, all else in the order of its places (default: as it is).

    ``updates_last``: what makes nothing of the step, as an update of parameters, runs when nothing else is left, with
    what makes its gradient.
    """
    place = place or uses.places
    live = set(uses.outputs)
    users: dict[int, set[int]] = {}
    for row in range(len(uses)):
        for buffer in uses.reads[row] | uses.writes[row]:
            users.setdefault(buffer, set()).add(row)

    def net(row: int) -> int:
        reads, writes = uses.reads[row], uses.writes[row]
        if updates_last and not writes:
            return 0
        takes = sum(uses.size[buffer] for buffer in reads - writes if buffer not in live)
        return takes - sum(uses.size[buffer] for buffer in writes - reads if buffer in live)

    def done(row: int) -> set[int]:
        changed = set[int]()
        for buffer in uses.reads[row] - live:
            changed |= users[buffer]
        live.update(uses.reads[row])
        live.difference_update(uses.writes[row] - uses.reads[row])
        return changed

    return tuple(_listed(uses.after, uses.before, [-p for p in place], net, done))[::-1]


def _listed(
    before: Sequence[frozenset[int]],
    after: Sequence[frozenset[int]],
    place: Sequence[int],
    net: Callable[[int], int],
    done: Callable[[int], set[int]],
) -> list[int]:
    """A list schedule: of the rows that wait for none, one whose ``net`` is not positive, else that of lowest place."""
    waits = [len(row) for row in before]
    has_run, order = [False] * len(waits), list[int]()
    ready = [(net(row) > 0, place[row], row) for row, count in enumerate(waits) if not count]
    heapq.heapify(ready)
    while ready:
        *_, row = heapq.heappop(ready)
        if has_run[row]:
            continue
        has_run[row] = True
        order.append(row)
        changed = {other for other in done(row) if not waits[other] and not has_run[other]}
        for other in after[row]:
            waits[other] -= 1
            if not waits[other]:
                heapq.heappush(ready, (net(other) > 0, place[other], other))
        for other in changed:
            if net(other) <= 0:
                heapq.heappush(ready, (False, place[other], other))
    return order


def late_then_free(uses: RowUses) -> Order:
    """A free-first schedule whose places are those of a late one."""
    return free_first(uses, places_of(late(uses)))


def small_first(uses: RowUses) -> Order:
    """The same, with small gradients and their updates as soon as they can: what they are made of goes before others
    are made; large ones when nothing else is left. That of a fused optimizer writes its gradient, and has that from
    ``late``.
    """
    takes = [sum(uses.size[buffer] for buffer in written) for written in uses.writes]
    return free_first(uses, places_of(late(uses, updates_last=True)), spare=max(takes, default=0) // SMALL_SHARE)


ORDERS: Final[tuple[tuple[str, Callable[[RowUses], Order]], ...]] = (
    ("as it is", as_it_is),
    ("free first", free_first),
    ("late, then free first", late_then_free),
    ("late, then small first", small_first),
)
"""Tried in this order; of equals the first is taken."""
