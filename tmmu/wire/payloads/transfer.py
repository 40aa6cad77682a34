"""Payloads of a message as they are received: memory for all of them, chunk by chunk, and the credit for more."""

from collections.abc import Sequence
from typing import Final

from tmmu.wire.frames import broken
from tmmu.wire.interface import Payloads
from tmmu.wire.limits import INLINE_BYTES, WINDOW_BYTES
from tmmu.wire.payloads.receive_pool import POOL

ALIGNMENT: Final = 64
"""Of each payload in memory, so that it may be a tensor of any type."""


def come_in_chunks(sizes: Sequence[int]) -> bool:
    """Whether payloads of these sizes come behind their message, and not in it."""
    return sum(sizes) > INLINE_BYTES


class ReceivedPayloads:
    """Memory for payloads of these sizes, filled in their order. Of what is new nothing is committed before bytes come;
    of what was used before, the bytes of others are overwritten by then.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes, self.total = tuple(sizes), sum(sizes)
        self.payloads: Payloads = _aligned_payloads(self.sizes) if sizes else ()
        self._index, self._filled = 0, 0
        self.received = 0
        self._credit = 0
        """Bytes that may come, beyond those that came."""

    @property
    def is_whole(self) -> bool:
        """Whether all bytes are there."""
        return self.received == self.total

    def fill(self, inline: memoryview) -> None:
        """Takes the bytes of all payloads from the message itself."""
        begin = 0
        for payload in self.payloads:
            payload[:] = inline[begin : begin + len(payload)]
            begin += len(payload)
        self.received = self.total

    def grant(self) -> int:
        """The credit to give now: so that a window is under way; 0 while half of one is."""
        left = self.total - self.received - self._credit
        more = min(WINDOW_BYTES - self._credit, left)
        if more <= 0 or (self._credit > WINDOW_BYTES // 2 and more < left):
            return 0
        self._credit += more
        return more

    def place(self, length: int) -> memoryview:
        """Where the next chunk goes. ``WIRE_BROKEN`` where it was given no credit, or crosses two payloads."""
        while self._index < len(self.payloads) and self._filled == len(self.payloads[self._index]):
            self._index, self._filled = self._index + 1, 0
        if length > self._credit or self._filled + length > len(self.payloads[self._index]):
            raise broken(f"a chunk of {length} bytes that nobody waits for")
        return self.payloads[self._index][self._filled : self._filled + length]

    def note(self, length: int) -> None:
        """A chunk is in its place."""
        self._filled += length
        self._credit -= length
        self.received += length


def received_inline(sizes: Sequence[int], inline: memoryview) -> ReceivedPayloads:
    """Payloads of these sizes, whose bytes were in their message."""
    received = ReceivedPayloads(sizes)
    received.fill(inline)
    return received


def _aligned_payloads(sizes: Sequence[int]) -> Payloads:
    begins, end = [], 0
    for size in sizes:
        begins.append(end)
        end += -(-size // ALIGNMENT) * ALIGNMENT
    block = POOL.take(end + ALIGNMENT)
    address: int = block.__array_interface__["data"][0]
    shift = -address % ALIGNMENT
    whole = block.data[shift:]
    return [whole[begin : begin + size] for begin, size in zip(begins, sizes, strict=True)]


class SentPayloads:
    """Payloads that go out in chunks, as credit comes. One thread may send while another one takes credit: each number
    is written by one of them alone.
    """

    def __init__(self, payloads: Payloads) -> None:
        self._payloads = [payload for payload in payloads if len(payload)]
        self._index, self._sent = 0, 0
        self._total = sum(map(len, self._payloads))
        self._granted, self._gone = 0, 0

    @property
    def is_sent(self) -> bool:
        """Whether all bytes went out."""
        return self._index == len(self._payloads)

    @property
    def credit(self) -> int:
        """Bytes that may go out now."""
        return self._granted - self._gone

    def add_credit(self, count: int) -> None:
        """More may go out. ``WIRE_BROKEN`` for more than there is."""
        if self._granted + count > self._total:
            raise broken(f"credit for {count} bytes that there are not")
        self._granted += count

    def next_chunk(self, longest: int) -> memoryview | None:
        """The next bytes to send, at most ``longest``; ``None`` while there is no credit, or nothing left."""
        credit = self.credit
        if self.is_sent or not credit:
            return None
        payload = self._payloads[self._index]
        chunk = payload[self._sent : self._sent + min(longest, credit)]
        self._sent += len(chunk)
        self._gone += len(chunk)
        if self._sent == len(payload):
            self._index, self._sent = self._index + 1, 0
        return chunk
