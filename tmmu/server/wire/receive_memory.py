"""Bytes in which payloads of all connections are received: first come, first served, half of them at most a client."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from typing import NamedTuple


class _Waiting(NamedTuple):
    client: str
    size: int
    begin: Callable[[], object]


class ReceiveMemory:
    """Used by the event loop alone. Whoever finds no room waits, behind those who wait already.

    A client that has some has at most half: who sends slowly holds up itself, and those behind it go on.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity, self.used = capacity, 0
        self._taken: dict[Hashable, tuple[str, int]] = {}
        self._used_by = Counter[str]()
        self._waiting = OrderedDict[Hashable, _Waiting]()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def reserve(self, owner: Hashable, client: str, size: int, begin: Callable[[], object]) -> None:
        """Calls ``begin`` once ``owner``, a request of ``client``, has so many bytes, now or later."""
        self._waiting[owner] = _Waiting(client, size, begin)
        self._serve()

    def release(self, owner: Hashable) -> None:
        """``owner`` has no bytes any more, and waits for none; nothing where it did neither."""
        client, size = self._taken.pop(owner, ("", 0))
        self.used -= size
        self._used_by[client] -= size
        if not self._used_by[client]:
            del self._used_by[client]
        self._waiting.pop(owner, None)
        self._serve()

    def _serve(self) -> None:
        while (owner := self._next()) is not None:
            client, size, begin = self._waiting.pop(owner)
            self._taken[owner] = client, size
            self.used += size
            self._used_by[client] += size
            begin()

    def _next(self) -> Hashable | None:
        """The first whose client may have its bytes, if there is room for them."""
        for owner, (client, size, _) in self._waiting.items():
            used = self._used_by[client]
            if not used or used + size <= self.capacity // 2:
                return owner if self.used + size <= self.capacity else None
        return None
