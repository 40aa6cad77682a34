import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tmmu.errors import WireBroken
from tmmu.wire.limits import CHUNK_BYTES, WINDOW_BYTES
from tmmu.wire.payloads.transfer import ALIGNMENT, ReceivedPayloads, SentPayloads


def test_payloads_come_over_in_chunks_within_a_window_and_aligned() -> None:
    generator = random.Random(0)
    sizes = [3 << 20, 0, 1, CHUNK_BYTES, 5 << 20, 0]
    data = [generator.randbytes(size) for size in sizes]
    received, sent = ReceivedPayloads(sizes), SentPayloads([memoryview(each) for each in data])
    assert sent.next_chunk(CHUNK_BYTES) is None
    outstanding = most = grants = 0
    while not received.is_whole:
        credit = received.grant()
        grants += credit > 0
        sent.add_credit(credit)
        outstanding += credit
        most = max(most, outstanding)
        chunk = sent.next_chunk(CHUNK_BYTES)
        assert chunk is not None
        assert len(chunk) <= CHUNK_BYTES
        received.place(len(chunk))[:] = chunk
        received.note(len(chunk))
        outstanding -= len(chunk)
    assert sent.is_sent
    assert most <= WINDOW_BYTES
    assert grants < 8  # not one for each chunk
    assert [bytes(payload) for payload in received.payloads] == data
    assert all(np.frombuffer(p, np.uint8).ctypes.data % ALIGNMENT == 0 for p in received.payloads if len(p))


def test_chunks_without_credit_or_across_payloads_are_refused() -> None:
    received = ReceivedPayloads([100_000, 100_000])
    with pytest.raises(WireBroken, match="nobody waits"):
        received.place(10)
    assert received.grant() == 200_000
    with pytest.raises(WireBroken, match="nobody waits"):
        received.place(100_001)
    received.place(100_000)
    received.note(100_000)
    received.note(100_000) if received.place(100_000) else None
    assert received.is_whole
    with pytest.raises(WireBroken):
        received.place(1)


def test_credit_for_bytes_that_there_are_not_is_refused() -> None:
    sent = SentPayloads([memoryview(bytes(70_000))])
    sent.add_credit(60_000)
    with pytest.raises(WireBroken, match="credit"):
        sent.add_credit(10_001)


def test_credit_that_comes_amid_a_chunk_is_not_lost() -> None:
    granted = 100

    class Chunk(bytes):
        def __len__(self) -> int:  # as another thread, while this one counts
            nonlocal granted
            sent.add_credit(10)
            granted += 10
            return super().__len__()

    class Payload(bytes):
        def __getitem__(self, index: Any) -> Any:
            return Chunk(super().__getitem__(index))

    payload: Any = Payload(1000)
    sent = SentPayloads([payload])
    sent.add_credit(granted)
    for taken in range(20, 120, 20):
        assert sent.next_chunk(20) is not None
        assert sent.credit == granted - taken


def test_memory_of_a_declared_message_is_not_committed_before_bytes_come() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = resident()
    received = ReceivedPayloads([1 << 30])
    assert resident() - before < 16 << 20
    assert len(received.payloads[0]) == 1 << 30
