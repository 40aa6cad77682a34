"""Counts of the wire, which the event loop and threads of many connections write."""

import sys
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from tests.server.wire_running import running_wire
from tests.unit.wire.sums import Add, Misbehave, Sums
from tmmu.errors import SegmentFull, WireBroken
from tmmu.server.wire.connection.wire_counts import WireCounts

NUMBERS = [field.name for field in fields(WireCounts) if field.name not in ("refusals", "lock")]


class WatchedCounts(WireCounts):
    """Notes which numbers change, and whether they do with the lock."""

    changed: dict[str, list[bool]]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in NUMBERS and getattr(self, name, value) != value:
            self.changed[name].append(self.lock.locked())
        super().__setattr__(name, value)


def test_every_number_is_written_with_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["tmmu.server.wire.wire_door"], "WireCounts", WatchedCounts)
    WatchedCounts.changed = {name: [] for name in NUMBERS}
    large = memoryview(np.zeros(300_000, np.uint8))
    with running_wire([Sums()]) as wire:
        for _ in range(2):
            connection = wire.connect()
            for number in range(20):
                connection.request(Add(numbers=(number,)))
            connection.request(Add(returns=True), [large])
            list(connection.stream(Add(numbers=(1, 2, 3), streams=True)))
            with pytest.raises(SegmentFull):
                connection.request(Misbehave(way="refuse"))
            connection._tagger.next_tag(b"", (b"",))
            with pytest.raises(WireBroken):
                connection.request(Add())
        counts = wire.door.counts
    assert [name for name, locked in WatchedCounts.changed.items() if not all(locked)] == []
    assert [name for name, locked in WatchedCounts.changed.items() if not locked] in ([], ["joined_frames"])
    assert counts.connections == 2
    assert counts.requests == 2 * 23
