"""The queue of an engine: which class is next, which client of it, and which of that client's requests. Pure.

Classes share steps by weight, and inside a class its clients do, by self-clocked fair queueing (Golestani, 1994): next
is whoever will have had the least work for its weight behind its next step. Who comes again after a pause begins where
the others are, and brings neither debt nor credit that is older. Work is counted, not timed: positions that a step
computes, and ``STEP_POSITIONS`` more for the step, which its rows share. Times come in with each call, for escalation
and deadlines.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from tmmu.engine.arguments import is_whole
from tmmu.engine.queue.ready_queue import OVERLOAD, PATIENCE, ReadyQueue
from tmmu.engine.queue.terms import CLASSES, QosClass, QueueTerms
from tmmu.errors import InvalidConfig

STEP_POSITIONS: Final = 32
"""What a step costs before it computes any position: it reads all weights, whoever is in it."""
SHARES: Final = (4, 3, 1)
"""Of realtime, interactive and batch, as the sources have them."""
ESCALATION_SECONDS: Final = 0.3
CREDIT_POSITIONS: Final = 4 * STEP_POSITIONS
"""The most work out of turn for which other work saves: so many tokens, one after the other, hold up a higher class."""
_SCALE: Final = 1 << 20
"""Units of virtual time for a position at weight 1: whole numbers, which no order of adding changes."""
LARGEST_SHARE: Final = 1 << 10


class Queued(Protocol):
    """A request, as far as the queue knows it. ``since``: when it came, or its last part ended. ``due``: see terms.

    ``positions``: what its next step computes of it. Times are seconds.
    """

    terms: QueueTerms
    is_prompt: bool
    positions: int
    since: float
    due: float | None


Item = TypeVar("Item", bound=Queued)


@dataclass(slots=True)
class _Line(Generic[Item]):
    """The requests of one client in one class; ``virtual``: the work that it has had, by its weight.

    ``decoded_last``: its next is a part of a prompt, where one waits: these and steps of decoding alternate.
    """

    waiting: ReadyQueue[Item]
    weight: int = 1
    virtual: int = 0
    is_active: bool = False
    decoded_last: bool = False


@dataclass(slots=True)
class _ClassLines(Generic[Item]):
    """The lines of a class. ``reached``: the virtual time at which a client begins that comes now: behind the step of
    the client that was served last, which ended before those of all others.
    """

    share: int
    rank: int
    lines: dict[str, _Line[Item]] = field(default_factory=dict)
    virtual: int = 0
    reached: int = 0
    is_active: bool = False


class _Turn(Generic[Item]):
    """What a line may serve now: ``items`` in its order, ``item`` next."""

    __slots__ = ("group", "item", "items", "line", "work")

    def __init__(self, group: _ClassLines[Item], line: _Line[Item], items: list[Item]) -> None:
        self.group, self.line, self.items = group, line, items
        self.choose()

    def choose(self) -> None:
        """Parts of prompts and steps of decoding alternate where both wait."""
        is_prompt = self.line.decoded_last
        self.item = next((item for item in self.items if item.is_prompt is is_prompt), self.items[0])
        self.work = (self.item.positions + STEP_POSITIONS) * _SCALE

    @property
    def end_of_class(self) -> int:
        """The virtual time of its class, behind that step."""
        return self.group.virtual + self.work // self.group.share

    @property
    def end_of_line(self) -> int:
        """The virtual time of its client, behind that step."""
        return self.line.virtual + self.work // self.line.weight


class FairQueue(Generic[Item]):
    """Requests that wait. ``shares``: of the classes, in their order; ``escalation``: seconds, ``None``: never.

    Escalation: a request that its class would serve next, and that has waited for so long, goes out of turn, the
    longest waiting first. Its work counts as its class's own, and all such work together is at most the lowest
    share's part of all, and one step; so shares hold in the long run, and escalation moves turns of a class to where
    they are missed.

    Bounds, for classes and clients that always have a request which may run: over any stretch, what two classes have
    had by their shares differs by at most the largest step of each, and what is served out of turn; so too clients of
    one class by their weights. A client's own requests are served as ``ReadyQueue`` has it.
    """

    def __init__(
        self,
        *,
        shares: Sequence[int] = SHARES,
        escalation: float | None = ESCALATION_SECONDS,
        overload: int = OVERLOAD,
        patience: int = PATIENCE,
    ) -> None:
        self.shares, self.escalation = _shares_of(shares), escalation
        self._overload, self._patience = overload, patience
        self._classes: dict[QosClass, _ClassLines[Item]] = {
            name: _ClassLines(share, rank) for rank, (name, share) in enumerate(zip(CLASSES, self.shares, strict=True))
        }
        self._reached = 0
        self._credit = 0
        self.escalated = 0
        """Steps that began out of turn."""

    # -- who waits

    def push(self, item: Item) -> None:
        """Adds a request behind all others of its client."""
        line = self._line_of(item)
        line.weight = item.terms.weight
        line.waiting.push(item, item.terms.priority)

    def put_back(self, item: Item) -> None:
        """Adds a request that was taken and is not done: of its client's it is the next of its kind."""
        self._line_of(item).waiting.put_back(item)

    def remove(self, item: Item) -> bool:
        """Takes a request out; false where it does not wait."""
        line = self._classes[item.terms.qos].lines.get(item.terms.client)
        return line is not None and line.waiting.remove(item)

    def clear(self) -> list[Item]:
        """Takes all requests out, in no particular order."""
        waiting = list(self._items())
        for group in self._classes.values():
            group.lines.clear()
        return waiting

    def take_late(self, now: float) -> list[Item]:
        """Takes out the requests whose deadline has come."""
        late = [item for item in self._items() if item.due is not None and item.due <= now]
        for item in late:
            self.remove(item)
        return late

    @property
    def next_due(self) -> float | None:
        """The nearest deadline of a request that waits."""
        return min((item.due for item in self._items() if item.due is not None), default=None)

    def count(self, fits: Callable[[Item], bool]) -> int:
        """How many requests fit."""
        return sum(fits(item) for item in self._items())

    def count_of(self, qos: QosClass) -> int:
        """How many requests of a class wait."""
        return sum(len(line.waiting) for line in self._classes[qos].lines.values())

    def __len__(self) -> int:
        return sum(self.count_of(qos) for qos in CLASSES)

    def outranks(self, item: Item, can_run: Callable[[Item], bool]) -> bool:
        """Whether a request of a higher class waits, and may run."""
        rank = self._classes[item.terms.qos].rank
        return any(
            line.waiting.count(can_run)
            for group in self._classes.values()
            if group.rank < rank
            for line in group.lines.values()
        )

    # -- who is next

    def take_next(self, now: float, can_run: Callable[[Item], bool]) -> Item | None:
        """The request that is next of those that may run; it no longer waits, and its positions are counted."""
        turns = self._turns(can_run)
        self._note_active(turns)
        candidates = _candidates(turns)
        if not candidates:
            return None
        by_share = candidates[0]
        overdue = self._overdue(candidates, now)
        chosen = by_share if overdue is None else overdue
        item = chosen.item
        if overdue is None:
            self._reached = max(self._reached, chosen.end_of_class)
        chosen.group.reached = max(chosen.group.reached, chosen.end_of_line)
        self._note_turn(item, is_out_of_turn=chosen is not by_share, is_contended=len(candidates) > 1)
        chosen.line.decoded_last = not item.is_prompt
        self._take(chosen, item)
        return item

    def take_beside(self, limit: int, fits: Callable[[Item], bool]) -> list[Item]:
        """Up to ``limit`` requests that fit in the step of one that was taken, each in its turn; positions are counted.

        Classes mix: a row beside others costs them little.
        """
        taken: list[Item] = []
        turns = self._turns(fits)
        while len(taken) < limit and turns:
            chosen = _candidates(turns)[0]
            taken.append(chosen.item)
            self._take(chosen, chosen.item)
            chosen.items.remove(chosen.item)
            if chosen.items:
                chosen.choose()
            else:
                turns.remove(chosen)
        return taken

    def charge(self, item: Item, positions: int) -> None:
        """Counts positions that a step has computed beside those that a request said."""
        self._charge(item, positions * _SCALE)

    def charge_step(self, rows: Sequence[Item]) -> None:
        """Counts what a step costs beside its positions, in equal parts, to the requests that it is made of."""
        for item in rows:
            self._charge(item, STEP_POSITIONS * _SCALE // len(rows))

    def _turns(self, fits: Callable[[Item], bool]) -> list[_Turn[Item]]:
        """The lines that have requests that fit. Each request is asked once, before anything is taken."""
        return [
            _Turn(group, line, items)
            for group in self._classes.values()
            for line in group.lines.values()
            if len(line.waiting) and (items := line.waiting.order(fits))
        ]

    def _note_active(self, turns: Sequence[_Turn[Item]]) -> None:
        """Has classes and clients that had nothing to run, and have now, begin where the others are: behind the last
        step that was one's turn.
        """
        active = {id(each) for turn in turns for each in (turn.group, turn.line)}
        for group in self._classes.values():
            for client, line in tuple(group.lines.items()):
                was_active, line.is_active = line.is_active, id(line) in active
                if line.is_active and not was_active:
                    line.virtual = max(line.virtual, group.reached)
                elif not len(line.waiting) and line.virtual <= group.reached:
                    del group.lines[client]
            was_active, group.is_active = group.is_active, id(group) in active
            if group.is_active and not was_active:
                group.virtual = max(group.virtual, self._reached)

    def _overdue(self, candidates: Sequence[_Turn[Item]], now: float) -> _Turn[Item] | None:
        """The candidate that has waited longest, where it is time, and work out of turn is not too much already."""
        if self.escalation is None or self._credit < 0:
            return None
        oldest = min(candidates, key=lambda each: (each.item.since, each.group.rank))
        return oldest if now - oldest.item.since >= self.escalation else None

    def _note_turn(self, item: Item, *, is_out_of_turn: bool, is_contended: bool) -> None:
        work = item.positions + STEP_POSITIONS
        if is_out_of_turn:
            self.escalated += 1
            self._credit -= sum(self.shares) * work
        elif is_contended:
            self._credit = min(self._credit + min(self.shares) * work, sum(self.shares) * CREDIT_POSITIONS)

    def _take(self, turn: _Turn[Item], item: Item) -> None:
        turn.line.waiting.take(1, lambda other: other is item)
        self._charge(item, item.positions * _SCALE)

    def _charge(self, item: Item, units: int) -> None:
        group, line = self._classes[item.terms.qos], self._line_of(item)
        group.virtual += units // group.share
        line.virtual += units // line.weight

    def _line_of(self, item: Item) -> _Line[Item]:
        """The line of a request's client, a new one where there is none."""
        group = self._classes[item.terms.qos]
        line = group.lines.get(item.terms.client)
        if line is None:
            queue: ReadyQueue[Item] = ReadyQueue(overload=self._overload, patience=self._patience)
            line = group.lines[item.terms.client] = _Line(queue, virtual=group.reached)
        return line

    def _items(self) -> Iterator[Item]:
        for group in self._classes.values():
            for line in group.lines.values():
                yield from line.waiting.items


def queue_of(queue: FairQueue[Item] | None) -> FairQueue[Item]:
    """``queue``, by default a new one; ``INVALID_CONFIG`` for what is none."""
    if queue is not None and not isinstance(queue, FairQueue):
        raise InvalidConfig(f"the queue is {queue!r:.40}", fix="give a FairQueue, or none")
    return FairQueue() if queue is None else queue


def _candidates(turns: Sequence[_Turn[Item]]) -> list[_Turn[Item]]:
    """The turn of each class: of the client whose next step ends first in virtual time; classes in that order too."""
    by_class: dict[int, tuple[int, _Turn[Item]]] = {}
    for turn in turns:
        end, best = turn.end_of_line, by_class.get(turn.group.rank)
        if best is None or end < best[0]:
            by_class[turn.group.rank] = end, turn
    return sorted((turn for _, turn in by_class.values()), key=lambda turn: (turn.end_of_class, turn.group.rank))


def _shares_of(shares: Sequence[int]) -> tuple[int, ...]:
    whole = isinstance(shares, Sequence) and all(is_whole(share) and 1 <= share <= LARGEST_SHARE for share in shares)
    if not whole or len(shares) != len(CLASSES):
        raise InvalidConfig(
            f"shares of classes are {shares!r:.40}",
            fix=f"give {len(CLASSES)} whole numbers from 1 to {LARGEST_SHARE}, for {', '.join(CLASSES)}",
        )
    return tuple(shares)
