"""What a connection has sent once and names by hash from then on: call forms, and graphs."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from tmmu.errors import QuotaExceeded
from tmmu.server.graphs.graph_limits import ClientUsage

T = TypeVar("T")


class RecordedTable(Mapping[bytes, T]):
    """At most ``most`` entries by hash, and within what their client may have recorded on all its connections.

    What came first goes first; what comes or is named again is new again, so that forms of a graph stay. Where bytes
    are short, entries of ``first`` go before any of its own: graphs before forms, of which graphs that come are made.
    """

    def __init__(self, most: int, usage: ClientUsage, *, first: "RecordedTable[Any] | None" = None) -> None:
        self._most, self._usage, self._first = most, usage, first
        self._entries: OrderedDict[bytes, tuple[T, int]] = OrderedDict()

    def keep(self, name: bytes, value: T, size: int) -> None:
        """Adds an entry of so many bytes as it travels; ``QUOTA_EXCEEDED`` where it has no room beside other tables."""
        while not self._usage.may_record(size):
            table = self._first or self
            if not table:
                raise QuotaExceeded(f"a graph or form of {size} bytes more than are kept", fix="record smaller graphs")
            table._forget_oldest()
        self._entries[name] = value, size
        if len(self._entries) > self._most:
            self._forget_oldest()

    def renew(self, name: bytes) -> bool:
        """Whether there is such an entry; it is the last to go then."""
        if name in self._entries:
            self._entries.move_to_end(name)
        return name in self._entries

    def clear(self) -> None:
        """Forgets all."""
        while self._entries:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, (_, size) = self._entries.popitem(last=False)
        self._usage.forget_recorded(size)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._entries)

    def __getitem__(self, name: bytes) -> T:
        return self._entries[name][0]

    def __len__(self) -> int:
        return len(self._entries)


def encoded_size(value: msgspec.Struct) -> int:
    """Bytes of a form or graph as it travels."""
    return len(msgspec.msgpack.encode(value))
