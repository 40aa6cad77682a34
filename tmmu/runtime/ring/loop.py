"""The streaming loop: what is issued when a visit begins and when it ends, pass after pass; the host never waits.

The schedule says when a copy may be issued at the earliest and which visits it overwrites; the loop issues it then, or
as soon as those visits have been issued, behind an event of the newest of them.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from tmmu.errors import InternalError
from tmmu.ir.ring import Copy, Ring
from tmmu.runtime.device.interface import POISON, Access, Arena, ByteRange, Device, Event, Stream, Task
from tmmu.runtime.ring.fences import Fence, FenceFilter, all_fences


class BlockSource(Protocol):
    """Where blocks come from: bytes on the host, which may lie in several runs that a copy must not span."""

    def pieces(self, block: int) -> Sequence[tuple[int, torch.Tensor | None, int]]:
        """(offset in the block, ``uint8[n]`` or nothing where there are no bytes, n), in order, together the block."""


@dataclass(frozen=True, slots=True)
class PlaceholderBlocks:
    """The blocks of a ring, for devices without memory; in pieces of at most ``piece`` bytes, if given."""

    ring: Ring
    max_piece_bytes: int = 0

    def pieces(self, block: int) -> Sequence[tuple[int, torch.Tensor | None, int]]:
        """The block, divided."""
        size = self.ring.blocks[block].bytes
        step = self.max_piece_bytes or size or 1
        return [(at, None, min(step, size - at)) for at in range(0, size, step)]


@dataclass(slots=True)
class LoopCounters:
    """What the loop has done so far."""

    passes: int = 0
    copies: int = 0
    copied_bytes: int = 0
    waits: int = 0
    held_back: int = 0
    """Copies that the schedule would have issued before the visits that they overwrite."""


class StreamingLoop:
    """Enter and leave every visit in the order of the schedule, pass after pass; between the two its block is there."""

    def __init__(  # noqa: PLR0913 - what, from where, on what, and how
        self,
        device: Device,
        ring: Ring,
        source: BlockSource,
        *,
        arena: Arena | None = None,
        prefetch: bool = True,
        poison: bool = False,
        declare: bool = False,
        fence_filter: FenceFilter = all_fences,
    ) -> None:
        """The blocks that stay are on their way, in ``arena`` or one that is made for it.

        ``prefetch`` off: each copy runs when its visit begins, and nothing beside it. ``poison``: what a visit leaves
        is made unreadable. ``declare``: the loop tells the device that the caller reads a block, where the caller
        computes outside of the device's knowledge.
        """
        self.device, self.ring, self.counters = device, ring, LoopCounters()
        self._stands, self._declare, self._prefetch = fence_filter, declare, prefetch
        self._schedule = _Schedule(ring, prefetch=prefetch)
        self._lane = device.caller_stream()
        self.copy_stream = device.create_stream("weights", urgent=True)
        self.arena = arena or device.allocate(ring.bytes)
        self._works = _Works(device, ring, source, self.arena.number, poison=poison)
        self._handoff, self._here = device.create_event(), device.create_event()
        self._fresh, self._loaded = device.create_event(), device.create_event()
        self._ready = [device.create_event() for _ in ring.visits]
        self._done = [device.create_event() for _ in ring.visits]
        self._open = True
        self._load()
        self._rewind()

    def read_task(self, visit: int, *, name: str = "", cost: int = 0) -> Task:
        """A work that reads the whole block of a visit, to be given to the caller's stream while it is entered."""
        look = self._works.look[visit]
        return Task(name=name or look.name, reads=look.reads, compute_ns=cost)

    def enter(self, visit: int) -> None:
        """What the caller's stream is given from now on finds the block of this visit."""
        self._hand_over()
        turn = self._entered[visit]
        self._entered[visit] += 1
        if visit == 0 and turn == 0:
            self._queue.extend((copy, 0) for copy in self._schedule.first)
        for copy, lag in self._schedule.due[visit]:
            self._queue.append((copy, turn + lag))
        self._pump()
        if self._schedule.copied[visit]:
            self._require_issued(visit, turn)
            self._wait_for_copy(visit, turn)
        if self._declare:
            self.device.submit(self._lane, self._works.look[visit])

    def leave(self, visit: int) -> None:
        """The caller's stream has been given all that reads the block of this visit."""
        self._hand_over()
        if self._declare:
            self.device.submit(self._lane, self._works.look[visit])
        poison = self._works.poison[visit]
        if poison is not None:
            self.device.submit(self._lane, poison)
        self.device.record(self._done[visit], self._lane)
        self._left[visit] += 1
        self._ends += 1
        self._ended[visit] = self._ends
        self.counters.passes = min(self._left)

    def restart(self) -> None:
        """Nothing is under way, and the next visit is the first of a first pass; for after a pass that broke off.

        The host waits; what failed on the device is raised, once.
        """
        try:
            self.device.synchronize()
        finally:
            self._rewind()

    def close(self) -> None:
        """Nothing is under way, and the arena is free. Closing twice is closing."""
        if not self._open:
            return
        self._open = False
        if self._stands(Fence.DRAIN, -1, 0):
            self.device.synchronize()
        if self._declare:
            whole = Access(ByteRange(self.arena.number, 0, self.arena.size), POISON)
            self.device.submit(self.device.caller_stream(), Task(name="release", writes=(whole,)))
        self.device.release(self.arena)
        self.device.destroy_stream(self.copy_stream)

    def _load(self) -> None:
        self.device.submit(self._lane, self._works.clear)
        self.device.record(self._fresh, self._lane)
        if self._stands(Fence.ARENA_CLEARED, -1, 0):
            self._wait(self.copy_stream, self._fresh)
        for block, row in enumerate(self.ring.blocks):
            if row.resident:
                self._copy(block)
        self.device.record(self._loaded, self.copy_stream)
        if self._stands(Fence.RESIDENT_LOADED, -1, 0):
            self._wait(self._lane, self._loaded)

    def _rewind(self) -> None:
        self._entered = [0] * len(self.ring.visits)
        self._left = [0] * len(self.ring.visits)
        self._issued = [0] * len(self.ring.visits)
        self._queue: deque[tuple[Copy, int]] = deque()
        self._ended, self._ends, self._link_knows = [0] * len(self.ring.visits), 0, 0
        self._landed, self._lane_knows = [0] * len(self.ring.visits), self.counters.copies

    def _hand_over(self) -> None:
        lane = self.device.caller_stream()
        if lane != self._lane:
            if self._stands(Fence.CALLER_SWITCH, -1, 0):
                self.device.record(self._handoff, self._lane)
                self._wait(lane, self._handoff)
            self._lane = lane

    def _pump(self) -> None:
        """Issues what is due, in order, up to the first copy whose readers have not been issued."""
        while self._queue:
            copy, turn = self._queue[0]
            if self._stands(Fence.READERS_ISSUED, copy.visit, turn) and not self._readers_issued(copy, turn):
                self.counters.held_back += 1
                return
            self._queue.popleft()
            self._issue(copy, turn)

    def _readers_issued(self, copy: Copy, turn: int) -> bool:
        return all(self._left[wait.visit] > turn - wait.lag for wait in copy.waits)

    def _issue(self, copy: Copy, turn: int) -> None:
        if not self._prefetch:
            self.device.record(self._here, self._lane)
            self._wait(self.copy_stream, self._here)
        past = [wait.visit for wait in copy.waits if turn >= wait.lag]
        if past:
            self._wait_for_readers(
                past[0 if self._stands(Fence.NEWEST_READER, copy.visit, turn) else -1], copy.visit, turn
            )
        self._copy(self.ring.visits[copy.visit].block, copy.visit, turn)
        self._issued[copy.visit] += 1
        self._landed[copy.visit] = self.counters.copies

    def _wait_for_copy(self, visit: int, turn: int) -> None:
        """The caller's stream comes after this copy, if it does not already."""
        if self._landed[visit] > self._lane_knows and self._stands(Fence.COPY_LANDED, visit, turn):
            self._wait(self._lane, self._ready[visit])
            self._lane_knows = self._landed[visit]

    def _wait_for_readers(self, reader: int, visit: int, turn: int) -> None:
        """The link comes after this visit, if it does not already: what it waits for it has waited for ever after."""
        if self._ended[reader] > self._link_knows and self._stands(Fence.READERS_DONE, visit, turn):
            self._wait(self.copy_stream, self._done[reader])
            self._link_knows = self._ended[reader]

    def _copy(self, block: int, visit: int = -1, turn: int = 0) -> None:
        for count, work in enumerate(self._works.copies[block]):
            self.device.submit(self.copy_stream, work)
            self.counters.copied_bytes += work.link_bytes
            if count == 0 and visit >= 0 and not self._stands(Fence.LAST_PIECE, visit, turn):
                self.device.record(self._ready[visit], self.copy_stream)
        if visit >= 0 and self._stands(Fence.LAST_PIECE, visit, turn):
            self.device.record(self._ready[visit], self.copy_stream)
        self.counters.copies += 1

    def _require_issued(self, visit: int, turn: int) -> None:
        if self._issued[visit] <= turn and self._stands(Fence.READERS_ISSUED, visit, turn):
            raise InternalError(
                f"visit {visit} of pass {turn} begins, and its copy waits for visits that come after it",
                fix="judge the plan: its ring is unsound, or visits were entered out of order",
                visit=visit,
            )

    def _wait(self, stream: Stream, event: Event) -> None:
        self.counters.waits += 1
        self.device.wait(stream, event)


class _Schedule:
    """Which copies are due at each visit; ``first`` are due before the first visit of all."""

    def __init__(self, ring: Ring, *, prefetch: bool) -> None:
        self.copied = [False] * len(ring.visits)
        self.due: list[list[tuple[Copy, int]]] = [[] for _ in ring.visits]
        self.first: list[Copy] = []
        for copy in ring.copies:
            self.copied[copy.visit] = True
            if not prefetch:
                self.due[copy.visit].append((copy, 0))
                continue
            self.due[copy.start.visit].append((copy, copy.start.lag))
            if copy.start.lag:
                self.first.append(copy)
        for row in self.due:
            row.sort(key=lambda one: (one[1], one[0].visit))


class _Works:
    """Everything that the loop ever submits, made once."""

    def __init__(self, device: Device, ring: Ring, image: BlockSource, arena: int, *, poison: bool) -> None:
        whole = ByteRange(arena, 0, ring.bytes)
        run = device.make_clear(whole)
        self.clear = Task(name="clear", writes=(Access(whole, POISON),), run=run)
        homes = [ByteRange(arena, block.address, block.address + block.bytes) for block in ring.blocks]
        self.copies = [_copies(device, image, block, home, ring) for block, home in enumerate(homes)]
        copied = {copy.visit for copy in ring.copies}
        self.look: list[Task] = []
        self.poison: list[Task | None] = []
        for index, visit in enumerate(ring.visits):
            home = homes[visit.block]
            self.look.append(Task(name=f"visit {index}", reads=(Access(home, visit.block),)))
            makes = poison and index in copied
            name = f"poison after visit {index}"
            gone = Task(name=name, writes=(Access(home, POISON),), run=device.make_clear(home)) if makes else None
            self.poison.append(gone)


def _copies(device: Device, image: BlockSource, block: int, home: ByteRange, ring: Ring) -> list[Task]:
    works = []
    for offset, source, size in image.pieces(block):
        place = ByteRange(home.arena, home.begin + offset, home.begin + offset + size)
        name = f"copy {ring.blocks[block].name}" + (f" from byte {offset}" if offset else "")
        run = device.make_copy(source, place)
        works.append(Task(name=name, writes=(Access(place, block),), run=run, link_bytes=size))
    return works
