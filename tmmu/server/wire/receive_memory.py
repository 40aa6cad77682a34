"""Bytes in which payloads of all connections are received: first come, first served."""

from collections import OrderedDict
from collections.abc import Callable, Hashable


class ReceiveMemory:
    """Used by the event loop alone. Whoever finds no room waits, behind those who wait already."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.used = capacity, 0
        self._sizes: dict[Hashable, int] = {}
        self._waiting = OrderedDict[Hashable, tuple[int, Callable[[], object]]]()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def reserve(self, owner: Hashable, size: int, begin: Callable[[], object]) -> None:
        """Calls ``begin`` once ``owner`` has so many bytes, now or later."""
        self._waiting[owner] = size, begin
        self._serve()

    def release(self, owner: Hashable) -> None:
        """``owner`` has no bytes any more, and waits for none; nothing where it did neither."""
        self.used -= self._sizes.pop(owner, 0)
        self._waiting.pop(owner, None)
        self._serve()

    def _serve(self) -> None:
        while self._waiting:
            owner, (size, begin) = next(iter(self._waiting.items()))
            if self.used + size > self.capacity:
                return
            del self._waiting[owner]
            self._sizes[owner] = size
            self.used += size
            begin()
