"""The table in the process, before any file: bounded, least recently used out first, safe between threads."""

from collections import OrderedDict
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class Table(Generic[T]):
    """At most ``rows`` items of ``room`` bytes together, by what each is said to cost."""

    def __init__(self, *, rows: int, room: int) -> None:
        self._rows = rows
        self._room = room
        self._held: OrderedDict[bytes, tuple[T, int]] = OrderedDict()
        self._cost = 0
        self._lock = Lock()

    def get(self, key: bytes) -> T | None:
        """The item under ``key``, which is now the last to go."""
        with self._lock:
            row = self._held.get(key)
            if row is None:
                return None
            self._held.move_to_end(key)
            return row[0]

    def put(self, key: bytes, item: T, cost: int) -> None:
        """``item`` stands under ``key``, unless it alone is larger than the table."""
        with self._lock:
            self._cost -= self._held.pop(key, (None, 0))[1]
            if cost > self._room:
                return
            self._held[key] = (item, cost)
            self._cost += cost
            while len(self._held) > self._rows or self._cost > self._room:
                self._cost -= self._held.popitem(last=False)[1][1]

    def __len__(self) -> int:
        return len(self._held)
