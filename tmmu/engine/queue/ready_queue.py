"""The ready queue: who waits for a step, and who is next. Pure: it runs nothing and knows no time.

First come, first served; while more than ``overload`` wait, the last to come is served first, since whoever has waited
long has mostly given up. Nobody starves: whoever was passed by ``patience`` times is next, the longest waiting first.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from tmmu.errors import InvalidConfig

Item = TypeVar("Item")
OVERLOAD: Final = 64
PATIENCE: Final = 16


@dataclass(slots=True)
class _Entry(Generic[Item]):
    item: Item
    passed: int = 0
    """How often others that came later were taken before it."""


class ReadyQueue(Generic[Item]):
    """Items that wait, in the order in which they came.

    Bound: an item is taken at the latest by the ``patience + n + 1``-th ``take`` for which it fits, where ``n`` items
    were there when it came: ``patience`` times others may pass it, and then those alone that came before it.
    """

    def __init__(self, *, overload: int = OVERLOAD, patience: int = PATIENCE) -> None:
        self.overload, self.patience = overload, patience
        self._entries: list[_Entry[Item]] = []

    def push(self, item: Item) -> None:
        """Adds an item behind all others."""
        self._entries.append(_Entry(item))

    def remove(self, item: Item) -> bool:
        """Takes an item out; false where it does not wait."""
        kept = [entry for entry in self._entries if entry.item is not item]
        found = len(kept) < len(self._entries)
        self._entries = kept
        return found

    def first(self) -> Item | None:
        """The item that is next; ``None`` where nobody waits."""
        order = self._order()
        return order[0].item if order else None

    def take(self, limit: int, fits: Callable[[Item], bool]) -> list[Item]:
        """Up to ``limit`` items that fit, in the order in which they are served; they no longer wait."""
        chosen = [entry for entry in self._order() if fits(entry.item)][:limit]
        if not chosen:
            return []
        places = {id(entry): place for place, entry in enumerate(self._entries)}
        last = max(places[id(entry)] for entry in chosen)
        taken = {id(entry) for entry in chosen}
        for entry in self._entries[:last]:
            if id(entry) not in taken:
                entry.passed += 1
        self._entries = [entry for entry in self._entries if id(entry) not in taken]
        return [entry.item for entry in chosen]

    def count(self, fits: Callable[[Item], bool]) -> int:
        """How many items fit."""
        return sum(fits(entry.item) for entry in self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def _order(self) -> list[_Entry[Item]]:
        patient = [entry for entry in self._entries if entry.passed < self.patience]
        urgent = [entry for entry in self._entries if entry.passed >= self.patience]
        return urgent + (patient[::-1] if len(self._entries) > self.overload else patient)


def queue_of(queue: ReadyQueue[Item] | None) -> ReadyQueue[Item]:
    """``queue``, by default a new one; ``INVALID_CONFIG`` for what is none."""
    if queue is not None and not isinstance(queue, ReadyQueue):
        raise InvalidConfig(f"the queue is {queue!r:.40}", fix="give a ReadyQueue, or none")
    return ReadyQueue() if queue is None else queue
