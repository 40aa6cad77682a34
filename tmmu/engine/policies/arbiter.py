"""Who gets the link next: swap-ins before swap-outs before weights, chunk by chunk, and nobody starves."""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from tmmu.errors import InvalidConfig

Direction: TypeAlias = Literal["in", "out", "weights"]
DIRECTIONS: Final[tuple[Direction, ...]] = ("in", "out", "weights")
"""In the order in which they are served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Bytes that cross the link at once: of a session, or of what ``key`` names among weights."""

    number: int
    key: int
    direction: Direction
    size: int


class LinkArbiter:
    """Splits requests into chunks of at most ``chunk`` bytes and issues them while at most ``in_flight`` are under way.

    Within a direction urgent requests come before early ones, and each kind in the order of asking. A direction that
    has something to move is passed over by at most ``patience + 2`` chunks of the others before its next one: after
    ``patience`` it is due, and the other two can at most have been due longer. So the oldest urgent request of a
    direction, of ``n`` chunks, has them all issued within ``n * (patience + 3)`` chunks.
    """

    def __init__(self, *, chunk: int, in_flight: int, patience: int) -> None:
        if chunk < 1 or in_flight < chunk or patience < 1:
            raise InvalidConfig(
                f"chunks of {chunk} bytes, {in_flight} in flight, patience {patience}",
                fix="give chunks of at least 1 byte, at least one of them in flight, and a patience of at least 1",
            )
        self._chunk, self._limit, self._patience = chunk, in_flight, patience
        self._urgent: dict[Direction, dict[int, int]] = {direction: {} for direction in DIRECTIONS}
        self._early: dict[Direction, dict[int, int]] = {direction: {} for direction in DIRECTIONS}
        self._passed = dict.fromkeys(DIRECTIONS, 0)
        self._issued: dict[int, Chunk] = {}
        self._count = 0
        self.in_flight = 0
        """Bytes of chunks that were issued and have not landed."""

    def request(self, key: int, direction: Direction, size: int, *, urgent: bool) -> None:
        """``size`` more bytes of ``key``; with ``urgent`` all that remain of it come before early ones."""
        remaining = self.cancel(key, direction, unless_urgent=True)
        queue = self._urgent if urgent or key in self._urgent[direction] else self._early
        total = queue[direction].get(key, 0) + remaining + size
        if total:
            queue[direction][key] = total

    def cancel(self, key: int, direction: Direction, *, unless_urgent: bool = False) -> int:
        """The bytes of ``key`` that were not issued and now never will be."""
        remaining = self._early[direction].pop(key, 0)
        return remaining if unless_urgent else remaining + self._urgent[direction].pop(key, 0)

    def remaining(self, key: int, direction: Direction) -> int:
        """Bytes of ``key`` that were asked for and not issued."""
        return self._early[direction].get(key, 0) + self._urgent[direction].get(key, 0)

    def next_chunk(self) -> Chunk | None:
        """The chunk to issue now; ``None`` where nothing is asked for or enough is in flight."""
        asking = [direction for direction in DIRECTIONS if self._urgent[direction] or self._early[direction]]
        if not asking:
            return None
        direction = self._choose(asking)
        queue = self._urgent[direction] or self._early[direction]
        key, remaining = next(iter(queue.items()))
        size = min(self._chunk, remaining)
        if self.in_flight + size > self._limit:
            return None
        if size == remaining:
            del queue[key]
        else:
            queue[key] = remaining - size
        self._pass_over(asking, direction)
        return self._issue(key, direction, size)

    def landed(self, chunk: Chunk) -> None:
        """The chunk is no longer in flight; a chunk that is not is ``INVALID_CONFIG``."""
        if self._issued.pop(chunk.number, None) != chunk:
            raise InvalidConfig(f"chunk {chunk.number} is not in flight", fix="report each chunk once")
        self.in_flight -= chunk.size

    def _choose(self, asking: list[Direction]) -> Direction:
        due = [direction for direction in asking if self._passed[direction] >= self._patience]
        return max(reversed(due), key=self._passed.__getitem__) if due else asking[0]

    def _pass_over(self, asking: list[Direction], chosen: Direction) -> None:
        for direction in DIRECTIONS:
            is_passed = direction in asking and direction != chosen
            self._passed[direction] = self._passed[direction] + 1 if is_passed else 0

    def _issue(self, key: int, direction: Direction, size: int) -> Chunk:
        chunk = Chunk(number=self._count, key=key, direction=direction, size=size)
        self._count += 1
        self._issued[chunk.number] = chunk
        self.in_flight += size
        return chunk
