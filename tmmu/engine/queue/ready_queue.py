"""The ready queue of one client: whose turn it is among its own. Pure: it runs nothing and knows no time.

What was begun goes on first; then the highest priority, first come, first served; while more than ``overload`` wait,
the last to come is served first, since whoever has waited long has mostly given up. Nobody starves: whoever was passed
by ``patience`` times goes before priorities, the longest waiting first.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

Item = TypeVar("Item")
OVERLOAD: Final = 64
PATIENCE: Final = 16


@dataclass(slots=True)
class _Entry(Generic[Item]):
    item: Item
    priority: int = 0
    is_begun: bool = False
    passed: int = 0
    """How often others that came later were taken before it."""


class ReadyQueue(Generic[Item]):
    """Items that wait, in the order in which they came.

    Bound: an item is taken at the latest by the ``patience + n + 1``-th ``take`` for which it fits, where ``n`` items
    were there when it came: ``patience`` times others may pass it, and then those alone that came before it. What is
    begun and put back counts as often as it is.
    """

    def __init__(self, *, overload: int = OVERLOAD, patience: int = PATIENCE) -> None:
        self.overload, self.patience = overload, patience
        self._entries: list[_Entry[Item]] = []

    def push(self, item: Item, priority: int = 0) -> None:
        """Adds an item behind all others."""
        self._entries.append(_Entry(item, priority))

    def put_back(self, item: Item) -> None:
        """Adds an item that was taken and is not done: it goes on before all others."""
        self._entries.insert(0, _Entry(item, is_begun=True))

    def remove(self, item: Item) -> bool:
        """Takes an item out; false where it does not wait."""
        kept = [entry for entry in self._entries if entry.item is not item]
        is_found = len(kept) < len(self._entries)
        self._entries = kept
        return is_found

    def order(self, fits: Callable[[Item], bool] = lambda _: True) -> list[Item]:
        """The items that fit, in the order in which they are served; each is asked once."""
        return [entry.item for entry in self._order() if fits(entry.item)]

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

    @property
    def items(self) -> tuple[Item, ...]:
        """All that wait, in the order in which they came."""
        return tuple(entry.item for entry in self._entries)

    def count(self, fits: Callable[[Item], bool]) -> int:
        """How many items fit."""
        return sum(fits(entry.item) for entry in self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def _order(self) -> list[_Entry[Item]]:
        if len(self._entries) <= self.overload and not any(
            entry.is_begun or entry.priority or entry.passed >= self.patience for entry in self._entries
        ):
            return self._entries
        begun = [entry for entry in self._entries if entry.is_begun]
        waiting = [entry for entry in self._entries if not entry.is_begun]
        urgent = [entry for entry in waiting if entry.passed >= self.patience]
        patient = [entry for entry in waiting if entry.passed < self.patience]
        if len(self._entries) > self.overload:
            patient.reverse()
        return begun + urgent + sorted(patient, key=lambda entry: -entry.priority)  # which keeps the order of equals
