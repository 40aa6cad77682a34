"""Issues the copies of a run between its ops, on a stream each way, without waits of the host.

    ops         make v | record W | ... | wait G | its bytes are others' | ... | record F | ... | wait B | read v
    to the host               wait W | copy v | record G
    from it                                                                wait F | copy v | record B

Invariants: host bytes are one value's alone, so that a copy to the host writes what nothing but its copy back reads;
that has ended before, as its reader has waited for it (BACK) before the value was made again (WRITTEN). A copy back
needs no wait for the copy to the host: the ops have waited for that (GONE) before they come to it (FREE). At the end of
a run the ops have waited for every copy. Every wait is for an event that was recorded before, so that waits form no
cycle. A run that broke off is waited for before the next one begins.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tmmu.runtime.device.interface import Access, Device, Event, Stream, Task
from tmmu.runtime.offload.copies import HostCopy
from tmmu.runtime.offload.fences import HostFence, HostFenceFilter, all_fences

DeclaredOps = Mapping[int, Task]
"""By position, what an op reads and writes, for observers."""


@dataclass(slots=True)
class HostCopyCounters:
    """What was issued so far."""

    copies: int = 0
    bytes_out: int = 0
    bytes_back: int = 0


class HostCopyLoop:
    """Call ``before`` for each position of the order and for its end, in this order, run after run."""

    def __init__(
        self,
        device: Device,
        copies: Sequence[HostCopy],
        length: int,
        *,
        ops: DeclaredOps | None = None,
        fence_filter: HostFenceFilter = all_fences,
    ) -> None:
        """``length``: of the order. Makes two streams and, for each copy, two events."""
        self.device, self.copies, self.counters = device, tuple(copies), HostCopyCounters()
        self._length, self._ops, self._is_set = length, ops or {}, fence_filter
        self._streams = {True: device.create_stream("to host"), False: device.create_stream("from host", urgent=True)}
        self._ready = [device.create_event() for _ in copies]
        self._landed = [device.create_event() for _ in copies]
        self._tasks = [self._task(copy) for copy in copies]
        self._begin = _by_position((copy.begin, index) for index, copy in enumerate(copies))
        self._end = _by_position((copy.end, index) for index, copy in enumerate(copies))
        self._under_way = False

    @property
    def positions(self) -> tuple[int, ...]:
        """Those at which ``before`` has something to do; all of them where ops are declared."""
        own = {0, self._length, *self._begin, *self._end}
        return tuple(range(self._length + 1)) if self._ops else tuple(sorted(own))

    def before(self, position: int) -> None:
        """Issues what may begin before the op at ``position``, and has it wait for what it needs."""
        if position == 0:
            if self._under_way:
                self.device.synchronize()
            self._under_way = True
        compute = self.device.caller_stream()
        # What is waited for here frees what begins here, and a copy that begins here is not waited for here.
        for index in self._end.get(position, ()):
            if self.copies[index].begin < position:
                self._await(index, compute)
        for index in self._begin.get(position, ()):
            self._issue(index, compute)
        for index in self._end.get(position, ()):
            if self.copies[index].begin == position:
                self._await(index, compute)
        if position in self._ops:
            self.device.submit(compute, self._ops[position])
        if position == self._length:
            self._under_way = False

    def close(self) -> None:
        """Waits for all copies, and ends the streams."""
        self.device.synchronize()
        for stream in self._streams.values():
            self.device.destroy_stream(stream)

    def _issue(self, index: int, compute: Stream) -> None:
        copy = self.copies[index]
        stream, ready = self._streams[copy.to_host], self._ready[index]
        self.device.record(ready, compute)
        if self._is_set(HostFence.WRITTEN if copy.to_host else HostFence.FREE, index):
            self.device.wait(stream, ready)
        self.device.submit(stream, self._tasks[index])
        self.device.record(self._landed[index], stream)
        self.counters.copies += 1
        size = copy.source.end - copy.source.begin
        if copy.to_host:
            self.counters.bytes_out += size
        else:
            self.counters.bytes_back += size

    def _await(self, index: int, compute: Stream) -> None:
        landed: Event = self._landed[index]
        if self._is_set(HostFence.GONE if self.copies[index].to_host else HostFence.BACK, index):
            self.device.wait(compute, landed)

    def _task(self, copy: HostCopy) -> Task:
        read, written = copy.contents
        move = self.device.make_move(copy.source, copy.target)
        return Task(
            name=f"{'to' if copy.to_host else 'from'} host {read}",
            reads=(Access(copy.source, read),),
            writes=(Access(copy.target, written),),
            run=move,
            link_bytes=copy.source.end - copy.source.begin,
        )


def _by_position(rows: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    by_position: dict[int, list[int]] = {}
    for position, index in rows:
        by_position.setdefault(position, []).append(index)
    return by_position
