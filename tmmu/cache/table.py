"""A bounded table in memory, least recently used out first, safe between threads. Every operation is O(1)."""

from collections import OrderedDict
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class LruTable(Generic[T]):
    """At most ``max_rows`` items whose costs, as told to ``put``, sum to at most ``max_cost``."""

    def __init__(self, *, max_rows: int, max_cost: int) -> None:
        self._max_rows = max_rows
        self._max_cost = max_cost
        self._entries: OrderedDict[bytes, tuple[T, int]] = OrderedDict()
        self._cost = 0
        self._lock = Lock()

    def get(self, key: bytes) -> T | None:
        """The item under ``key``, now the most recently used."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: bytes, item: T, cost: int) -> None:
        """``item`` stands under ``key`` in place of any other, unless it alone costs more than the table may hold."""
        with self._lock:
            self._cost -= self._entries.pop(key, (None, 0))[1]
            if cost > self._max_cost:
                return
            self._entries[key] = (item, cost)
            self._cost += cost
            while len(self._entries) > self._max_rows or self._cost > self._max_cost:
                self._cost -= self._entries.popitem(last=False)[1][1]

    def __len__(self) -> int:
        return len(self._entries)
