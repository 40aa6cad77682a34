"""The link: chunks of states as tasks of two streams, one out and one in, and the fences around them.

Steps run on the caller's stream. What is waited for where:

=================  ================================  =========================================
                   runs after                        is over when
=================  ================================  =========================================
a copy out         the last step of its session      the host has waited for it (OUT_LANDED)
a copy in          the host's wait for all before    the host has waited for it (IN_LANDED)
clearing a room    the last step in it, copies out   the host has waited for it (CLEARED)
wiping a range     copies out                        the next copy out runs: one stream
a step             the host's wait for all before
=================  ================================  =========================================

Invariants: ranges of the host are written by the out stream alone; a room is a session's from when it was cleared.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from tmmu.engine.geometry import Geometry, StateLengths
from tmmu.engine.swap.fences import SwapFence, SwapFenceFilter, all_fences
from tmmu.engine.swap.host_tier import HostRange
from tmmu.engine.swap.state_image import StatePiece
from tmmu.engine.swap.states import SwapState
from tmmu.runtime.device.interface import POISON, Access, Arena, ByteRange, Device, Event, Stream, Task

_NO_POSITIONS: Final = StateLengths(0, 0)


@dataclass(frozen=True, slots=True, eq=False)
class InFlight:
    """What a stream was given and the host has not waited for. ``finish``: what is true afterwards."""

    fence: SwapFence
    event: Event
    finish: Callable[[], bool]


class SwapLink:
    """Streams, events and tasks; not for several threads at once. ``data`` and ``host``: the arenas of both ends."""

    def __init__(
        self,
        device: Device,
        geometry: Geometry,
        *,
        data: Arena,
        host: Arena,
        fence_filter: SwapFenceFilter = all_fences,
    ) -> None:
        self.device, self._geometry = device, geometry
        self._data, self._host = data.number, host.number
        self._is_set = fence_filter
        self._out = device.create_stream("swap out")
        self._in = device.create_stream("swap in", urgent=True)
        self._free_events: list[Event] = []
        self.on_landed: Callable[[InFlight], object] = _ignore
        """Called by a thread of the device's when a task is over; then ``land`` it."""
        self.in_flight: list[InFlight] = []
        """In the order of issue."""

    def copy_out(self, state: SwapState, pieces: Sequence[StatePiece], finish: Callable[[], bool]) -> None:
        """Copies pieces of a state from its room to the host."""
        self._wait_for_step(self._out, state, SwapFence.STEP_BEFORE_OUT)
        places = [(self._in_room(state, piece), self._on_host(piece)) for piece in pieces]
        self._submit_copy(self._out, f"copy out {state.number}", state.number, places)
        self._follow(self._out, SwapFence.OUT_LANDED, finish)

    def copy_in(self, state: SwapState, pieces: Iterable[StatePiece], finish: Callable[[], bool]) -> None:
        """Copies pieces of a state from the host to its room."""
        places = [(self._on_host(piece), self._in_room(state, piece)) for piece in pieces]
        self._submit_copy(self._in, f"copy in {state.number}", state.number, places)
        self._follow(self._in, SwapFence.IN_LANDED, finish)

    def clear(self, state: SwapState, finish: Callable[[], bool]) -> None:
        """Zeroes the room that a state leaves."""
        self._wait_for_step(self._out, state, SwapFence.STEP_BEFORE_CLEAR)
        room = ByteRange(self._data, state.base, state.base + state.room)
        task = Task(name=f"clear {state.number}", writes=(Access(room, POISON),), run=self.device.make_zero(room))
        self.device.submit(self._out, task)
        self._follow(self._out, SwapFence.CLEARED, finish)

    def wipe(self, ranges: Iterable[HostRange]) -> None:
        """Zeroes ranges that are free: they are written by copies of the same stream alone."""
        places = [self._on_host(host_range) for host_range in ranges]
        if places:
            run = partial(_run_all, [self.device.make_zero(place) for place in places])
            writes = tuple(Access(place, POISON) for place in places)
            self.device.submit(self._out, Task(name="wipe", writes=writes, run=run))

    def land(self, task: InFlight) -> bool:
        """The host waits for a task, which is over by then; what its ``finish`` returns. Raises what failed in it."""
        self.in_flight.remove(task)
        if self._is_set(task.fence):
            self.device.wait_on_host(task.event)
        self._free_events.append(task.event)
        return task.finish()

    def begin_step(self, written: Sequence[SwapState], read: Sequence[SwapState] = (), *, is_new: bool = False) -> None:
        """The caller's stream is given a step that reads and writes states, or reads them alone.

        ``is_new``: it reads nothing of what it writes.
        """
        self._declare_step(written, read, is_new=is_new)

    def end_step(self, written: Sequence[SwapState], read: Sequence[SwapState] = ()) -> None:
        """The caller's stream was given all of the step."""
        self._declare_step(written, read)
        stream = self.device.caller_stream()
        for state in (*written, *read):
            if state.last_step is None:
                state.last_step = self._take_event()
            self.device.record(state.last_step, stream)

    def forget_step(self, state: SwapState) -> None:
        """The event of a state that is closed may be used for others."""
        if state.last_step is not None:
            self._free_events.append(state.last_step)
            state.last_step = None

    def close(self) -> None:
        """Waits for all that is under way, and ends the streams; ``land`` what is in flight before."""
        if self._is_set(SwapFence.DRAIN):
            self.device.synchronize()
        if self.device.has_observers:
            writes = tuple(Access(ByteRange(number, 0, 1 << 62), POISON) for number in (self._data, self._host))
            self.device.submit(self.device.caller_stream(), Task(name="release", writes=writes))
        for stream in (self._out, self._in):
            self.device.destroy_stream(stream)

    def _wait_for_step(self, stream: Stream, state: SwapState, fence: SwapFence) -> None:
        if state.last_step is not None and self._is_set(fence):
            self.device.wait(stream, state.last_step)

    def _submit_copy(
        self, stream: Stream, name: str, content: int, places: Sequence[tuple[ByteRange, ByteRange]]
    ) -> None:
        task = Task(
            name=name,
            reads=tuple(Access(source, content) for source, _ in places),
            writes=tuple(Access(target, content) for _, target in places),
            run=partial(_run_all, [self.device.make_move(source, target) for source, target in places]),
            link_bytes=sum(source.end - source.begin for source, _ in places),
        )
        self.device.submit(stream, task)

    def _follow(self, stream: Stream, fence: SwapFence, finish: Callable[[], bool]) -> None:
        task = InFlight(fence, self._take_event(), finish)
        self.device.record(task.event, stream)
        self.in_flight.append(task)
        self.device.call_back(stream, lambda: self.on_landed(task))

    def _declare_step(self, written: Iterable[SwapState], read: Iterable[SwapState], *, is_new: bool = False) -> None:
        """What a step reads and writes: it reads what lives, and writes behind that, and what recurs."""
        if not self.device.has_observers:
            return
        for state, is_written in [(state, True) for state in written] + [(state, False) for state in read]:
            reads, writes = list[Access](), list[Access]()
            offsets = self._geometry.offsets(state.capacities)
            for tensor in self._geometry.arena_tensors:
                whole = tensor.bytes_for(state.capacities)
                live = 0 if is_new or state.lengths == _NO_POSITIONS else tensor.bytes_for(state.lengths)
                begin = state.base + offsets[tensor.name]
                reads.append(Access(ByteRange(self._data, begin, begin + live), state.number))
                first = begin + (live if tensor.grows else 0)
                if is_written:
                    writes.append(Access(ByteRange(self._data, first, begin + whole), state.number))
            task = Task(name=f"step of {state.number}", reads=tuple(reads), writes=tuple(writes))
            self.device.submit(self.device.caller_stream(), task)

    def _in_room(self, state: SwapState, piece: StatePiece) -> ByteRange:
        tensor = self._geometry.arena_tensors[piece.tensor]
        begin = state.base + self._geometry.offsets(state.capacities)[tensor.name] + piece.start
        return ByteRange(self._data, begin, begin + piece.size)

    def _on_host(self, place: HostRange | StatePiece) -> ByteRange:
        return ByteRange(self._host, place.offset, place.offset + place.size)

    def _take_event(self) -> Event:
        return self._free_events.pop() if self._free_events else self.device.create_event()


def _run_all(moves: Iterable[Callable[[], object]]) -> None:
    for move in moves:
        move()


def _ignore(task: InFlight) -> None:
    del task
