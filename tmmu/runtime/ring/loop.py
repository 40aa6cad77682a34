"""The streaming loop: issues the copies of a ring between the caller's visits, pass after pass, without host waits.

Double buffering for any number of blocks at any addresses. Two streams, both in order: the *compute stream*, which is
the caller's, and the *copy stream*. With blocks 0 and 2 at one address and block 1 at another:

    compute stream   wait L0 | visit 0 | record D0   wait L1 | visit 1 | record D1   wait L2 | visit 2 | record D2
    copy stream      copy 0 | record L0   copy 1 | record L1   wait D0 | copy 2 | record L2   wait D1 | ...

Each visit has two events: ``landed`` (L, its copy is complete) and ``done`` (D, the compute stream has passed its end).
The fences are in ``fences.py``; names in capitals below are theirs.

State, per visit: how often it was entered, left, and its copy issued; a queue of copies that are due but not issued.

Invariants:

- Copies are issued in the order of the schedule, each at the earliest when the visit ``copy.start`` is entered.
- A copy is issued only when every visit whose bytes it overwrites was left (READERS_ISSUED). So its ``done`` event is
  recorded for that pass, and a wait issued now waits for that end and not for an older one.
- A copy runs after the newest of those visits is done (READERS_DONE, NEWEST_READER). A visit's tasks run after its copy
  has landed (COPY_LANDED, LAST_PIECE). So between ``enter`` and ``leave`` the block is whole and nothing overwrites it.
- A wait that an earlier one implies is not issued: a stream in order that waited for the n-th copy, or the n-th end, is
  behind all earlier ones for ever.

No deadlock: a wait is only ever for an event that was recorded before, so waits form no cycle. A sound ring (the judge)
has every copy issued by its own visit; one that has not raises ``InternalError`` instead of reading old bytes.

Cost: per visit of a streamed block at most one record and one wait on either stream, and one copy per piece.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from tmmu.errors import InternalError
from tmmu.ir.ring import Copy, Ring
from tmmu.runtime.device.interface import POISON, Access, Arena, ByteRange, Device, Event, Stream, Task
from tmmu.runtime.ring.fences import Fence, FenceFilter, all_fences


class BlockSource(Protocol):
    """Where copies come from: the blocks of a ring in host memory."""

    def pieces(self, block: int) -> Sequence[tuple[int, torch.Tensor | None, int]]:
        """The block in order, in runs that one copy can move: (offset in it, ``uint8[n]`` if there are bytes, n)."""


@dataclass(frozen=True, slots=True)
class PlaceholderBlocks:
    """The blocks of a ring without bytes, for dry runs; in pieces of at most ``max_piece_bytes``, if that is given."""

    ring: Ring
    max_piece_bytes: int = 0

    def pieces(self, block: int) -> Sequence[tuple[int, torch.Tensor | None, int]]:
        """The block, divided."""
        size = self.ring.blocks[block].bytes
        step = self.max_piece_bytes or size or 1
        return [(offset, None, min(step, size - offset)) for offset in range(0, size, step)]


@dataclass(slots=True)
class LoopCounters:
    """What the loop has done so far. ``passes`` counts whole ones, ``copies`` those of resident blocks too."""

    passes: int = 0
    copies: int = 0
    copied_bytes: int = 0
    waits: int = 0
    held_back: int = 0
    """Copies that were due before the visits that they overwrite were left; 0 for a sound ring."""


class StreamingLoop:
    """Call ``enter`` and ``leave`` for every visit in the order of the schedule, pass after pass.

    What is submitted to the caller's stream between the two finds the block of the visit at its address.
    """

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
        before_piece: Callable[[int], object] | None = None,
    ) -> None:
        """Submits the copies of the resident blocks, into ``arena`` or a new one of ``ring.bytes``.

        ``prefetch=False``: each copy runs when its visit is entered, after all computing so far. ``poison``: a streamed
        block is overwritten with 255s when its visit is left. ``declare``: reads of blocks are submitted as tasks
        without work, where the caller computes without the device's knowledge but observers are to know.
        ``before_piece``: called with the bytes of each piece before it is issued; it may wait for others on the link.
        """
        self.device, self.ring, self.counters = device, ring, LoopCounters()
        self._is_set, self._declare, self._prefetch = fence_filter, declare, prefetch
        self._before_piece = before_piece
        self._due = _DueCopies(ring, prefetch=prefetch)
        self._compute_stream = device.caller_stream()
        self.copy_stream = device.create_stream("weights", urgent=True)
        self.arena = arena or device.allocate(ring.bytes)
        self._tasks = _Tasks(device, ring, source, self.arena.number, poison=poison)
        # One event for all orders of whole streams: a wait captures the record at its issue, so it can be reused.
        self._order_event = device.create_event()
        self._landed = [device.create_event() for _ in ring.visits]
        self._done = [device.create_event() for _ in ring.visits]
        self._is_open = True
        self._load_resident()
        self._rewind()

    def read_task(self, visit: int, *, name: str = "", cost: int = 0) -> Task:
        """A task that reads the whole block of a visit, to be submitted to the caller's stream within the visit."""
        read = self._tasks.reads[visit]
        return Task(name=name or read.name, reads=read.reads, compute_ns=cost)

    def enter(self, visit: int) -> None:
        """Issues the copies that are due; what the caller's stream is given from now on finds the block."""
        self._follow_caller()
        pass_index = self._entered[visit]
        self._entered[visit] += 1
        if visit == 0 and pass_index == 0:
            # Copies that start in the pass before: the first pass has none, so they are due at its beginning.
            self._queue.extend((copy, 0) for copy in self._due.before_first)
        self._queue.extend((copy, pass_index + lag) for copy, lag in self._due.at_visit[visit])
        self._issue_due_copies()
        if self._due.has_copy[visit]:
            self._require_issued(visit, pass_index)
            self._wait_for_copy(visit, pass_index)
        if self._declare:
            self.device.submit(self._compute_stream, self._tasks.reads[visit])

    def leave(self, visit: int) -> None:
        """The caller's stream has been given all that reads the block; its end is recorded."""
        self._follow_caller()
        if self._declare:
            self.device.submit(self._compute_stream, self._tasks.reads[visit])
        poison = self._tasks.poison[visit]
        if poison is not None:
            # Before the record: a copy that waits for the end of the visit comes after its poison too.
            self.device.submit(self._compute_stream, poison)
        self.device.record(self._done[visit], self._compute_stream)
        self._left[visit] += 1
        self._ends += 1
        self._end_number[visit] = self._ends
        self.counters.passes = self._passes_before + min(self._left)

    def restart(self) -> None:
        """Forgets a pass that broke off: the next visit is the first of a first pass.

        The host waits for all streams; what failed on the device is raised, once.
        """
        try:
            self.device.synchronize()
        finally:
            self._rewind()

    def close(self) -> None:
        """Waits for all streams and releases the arena. May be called twice."""
        if not self._is_open:
            return
        self._is_open = False
        if self._is_set(Fence.DRAIN, -1, 0):
            self.device.synchronize()
        if self._declare:
            whole = Access(ByteRange(self.arena.number, 0, self.arena.size), POISON)
            self.device.submit(self.device.caller_stream(), Task(name="release", writes=(whole,)))
        self.device.release(self.arena)
        self.device.destroy_stream(self.copy_stream)

    def _load_resident(self) -> None:
        self.device.submit(self._compute_stream, self._tasks.clear)
        if self._is_set(Fence.ARENA_CLEARED, -1, 0):
            self._order(self._compute_stream, self.copy_stream)
        for block, row in enumerate(self.ring.blocks):
            if row.resident:
                self._submit_pieces(self._tasks.copies[block])
                self.counters.copies += 1
        if self._is_set(Fence.RESIDENT_LOADED, -1, 0):
            self._order(self.copy_stream, self._compute_stream)

    def _rewind(self) -> None:
        count = len(self.ring.visits)
        self._passes_before = self.counters.passes
        self._entered, self._left, self._issued = [0] * count, [0] * count, [0] * count
        self._queue: deque[tuple[Copy, int]] = deque()
        # Ends and copies are numbered as they are issued, which is the order in which their streams run them. Of each
        # visit the latest number, and the highest one that the opposite stream is known to come after.
        self._end_number, self._ends, self._copies_after_end = [0] * count, 0, 0
        self._copy_number, self._compute_after_copy = [0] * count, self.counters.copies

    def _follow_caller(self) -> None:
        """Orders the caller's stream after the one that it used before, if it has changed."""
        stream = self.device.caller_stream()
        if stream != self._compute_stream:
            if self._is_set(Fence.CALLER_SWITCH, -1, 0):
                self._order(self._compute_stream, stream)
            self._compute_stream = stream

    def _issue_due_copies(self) -> None:
        """Issues copies in order, up to the first one whose readers were not all left; it holds back all after it."""
        while self._queue:
            copy, pass_index = self._queue[0]
            if self._is_set(Fence.READERS_ISSUED, copy.visit, pass_index) and not self._readers_left(copy, pass_index):
                self.counters.held_back += 1
                return
            self._queue.popleft()
            self._issue(copy, pass_index)

    def _readers_left(self, copy: Copy, pass_index: int) -> bool:
        return all(self._left[wait.visit] > pass_index - wait.lag for wait in copy.waits)

    def _issue(self, copy: Copy, pass_index: int) -> None:
        visit = copy.visit
        if not self._prefetch:
            self._order(self._compute_stream, self.copy_stream)
        readers = [wait.visit for wait in copy.waits if pass_index >= wait.lag]
        if readers:
            newest = self._is_set(Fence.NEWEST_READER, visit, pass_index)
            self._wait_for_reader(readers[0 if newest else -1], visit, pass_index)
        pieces = self._tasks.copies[self.ring.visits[visit].block]
        recorded_after = len(pieces) if self._is_set(Fence.LAST_PIECE, visit, pass_index) else 1
        self._submit_pieces(pieces[:recorded_after])
        self.device.record(self._landed[visit], self.copy_stream)
        self._submit_pieces(pieces[recorded_after:])
        self.counters.copies += 1
        self._issued[visit] += 1
        self._copy_number[visit] = self.counters.copies

    def _wait_for_copy(self, visit: int, pass_index: int) -> None:
        """RAW: the compute stream comes after the copy of this visit, if it does not already."""
        if self._copy_number[visit] > self._compute_after_copy and self._is_set(Fence.COPY_LANDED, visit, pass_index):
            self._wait(self._compute_stream, self._landed[visit])
            self._compute_after_copy = self._copy_number[visit]

    def _wait_for_reader(self, reader: int, visit: int, pass_index: int) -> None:
        """WAR: the copy stream comes after the end of visit ``reader``, if it does not already."""
        if self._end_number[reader] > self._copies_after_end and self._is_set(Fence.READERS_DONE, visit, pass_index):
            self._wait(self.copy_stream, self._done[reader])
            self._copies_after_end = self._end_number[reader]

    def _submit_pieces(self, pieces: Sequence[Task]) -> None:
        for piece in pieces:
            if self._before_piece is not None:
                self._before_piece(piece.link_bytes)
            self.device.submit(self.copy_stream, piece)
            self.counters.copied_bytes += piece.link_bytes

    def _require_issued(self, visit: int, pass_index: int) -> None:
        if self._issued[visit] <= pass_index and self._is_set(Fence.READERS_ISSUED, visit, pass_index):
            raise InternalError(
                f"visit {visit} of pass {pass_index} begins, and its copy waits for visits that come after it",
                fix="judge the plan: its ring is unsound, or visits were entered out of order",
                visit=visit,
            )

    def _order(self, before: Stream, after: Stream) -> None:
        """What ``after`` is given from now on runs after what ``before`` was given so far."""
        self.device.record(self._order_event, before)
        self._wait(after, self._order_event)

    def _wait(self, stream: Stream, event: Event) -> None:
        self.counters.waits += 1
        self.device.wait(stream, event)


class _DueCopies:
    """Which copies are due when: ``at_visit`` as (copy, lag of its start), ``before_first`` before the first visit."""

    def __init__(self, ring: Ring, *, prefetch: bool) -> None:
        self.has_copy = [False] * len(ring.visits)
        self.at_visit: list[list[tuple[Copy, int]]] = [[] for _ in ring.visits]
        self.before_first: list[Copy] = []
        for copy in ring.copies:
            self.has_copy[copy.visit] = True
            if not prefetch:
                self.at_visit[copy.visit].append((copy, 0))
                continue
            self.at_visit[copy.start.visit].append((copy, copy.start.lag))
            if copy.start.lag:
                self.before_first.append(copy)
        for row in self.at_visit:
            # Copies for this pass before those for the next: the order of the link.
            row.sort(key=lambda due: (due[1], due[0].visit))


class _Tasks:
    """Every task that the loop submits, made once. ``copies`` are by block, ``reads`` and ``poison`` by visit."""

    def __init__(self, device: Device, ring: Ring, source: BlockSource, arena: int, *, poison: bool) -> None:
        whole = ByteRange(arena, 0, ring.bytes)
        self.clear = Task(name="clear", writes=(Access(whole, POISON),), run=device.make_clear(whole))
        places = [ByteRange(arena, block.address, block.address + block.bytes) for block in ring.blocks]
        self.copies = [_copy_tasks(device, source, block, place, ring) for block, place in enumerate(places)]
        streamed = {copy.visit for copy in ring.copies}
        self.reads: list[Task] = []
        self.poison: list[Task | None] = []
        for index, visit in enumerate(ring.visits):
            place = places[visit.block]
            self.reads.append(Task(name=f"visit {index}", reads=(Access(place, visit.block),)))
            name, writes = f"poison after visit {index}", (Access(place, POISON),)
            poisons = poison and index in streamed
            self.poison.append(Task(name=name, writes=writes, run=device.make_clear(place)) if poisons else None)


def _copy_tasks(device: Device, source: BlockSource, block: int, place: ByteRange, ring: Ring) -> list[Task]:
    tasks = []
    for offset, data, size in source.pieces(block):
        piece = ByteRange(place.arena, place.begin + offset, place.begin + offset + size)
        name = f"copy {ring.blocks[block].name}" + (f" from byte {offset}" if offset else "")
        run = device.make_copy(data, piece)
        tasks.append(Task(name=name, writes=(Access(piece, block),), run=run, link_bytes=size))
    return tasks
