"""The CPU as a device: a thread for each stream, real copies; the caller's own thread is a stream that runs at once.

A caller that gives all its computing to the device can have a thread for that too.

With a ``Jitter`` every stream dawdles at random before each thing that it does, and copies land in parts with pauses
between them, so that whatever is not ordered happens in another order soon.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from random import Random
from threading import Event as Flag
from threading import Thread
from time import sleep
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from tmmu.runtime.device.interface import Arena, ByteRange, Event, Observer, Stream, Task
from tmmu.runtime.device.memory import MemoryDevice
from tmmu.runtime.memory.slab import Slab

ALIGNMENT: Final = 4096
"""Of an arena: what a plan can ask for at most of memory that is paged."""
PARTS: Final = 4

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Jitter:
    """Pauses of up to ``longest`` seconds, by ``seed``."""

    seed: int
    max_seconds: float


class _Lane:
    """The thread of a stream and what it has yet to do; without a thread, things are done where they are given."""

    def __init__(self, name: str, jitter: Jitter | None, number: int, *, inline: bool) -> None:
        self._random = None if jitter is None else Random(jitter.seed * 1009 + number)
        self._longest = 0.0 if jitter is None else jitter.max_seconds
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self.thread = None if inline else Thread(target=self._work, name=f"tmmu {name}", daemon=True)
        if self.thread is not None:
            self.thread.start()

    def give(self, job: Callable[[], object]) -> None:
        """Done after all that was given before."""
        if self.thread is None:
            self.dawdle()
            job()
        else:
            self._queue.put(job)

    def dawdle(self) -> None:
        """Time passes, if it is made to."""
        if self._random is not None and self._random.random() < 0.5:
            sleep(self._random.random() * self._longest)

    def stop(self) -> None:
        """Everything that was given is done, and the thread is gone. Stopping twice is stopping."""
        if self.thread is not None:
            self._queue.put(None)
            self.thread.join()
            self.thread = None

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            self.dawdle()
            job()


class ThreadsDevice(MemoryDevice):
    """Arenas in host memory. What fails in a stream's thread is raised where the host next waits for it."""

    def __init__(
        self, observers: Sequence[Observer] = (), *, jitter: Jitter | None = None, inline: bool = True
    ) -> None:
        """With ``inline`` the caller's stream is the calling thread."""
        super().__init__(observers)
        self.device = torch.device("cpu")
        self._jitter = jitter
        self._lanes: list[_Lane] = []
        self._slabs: dict[int, Slab] = {}
        self._latest: dict[int, Flag] = {}
        self._failure: Exception | None = None
        self._failed = False
        self._inline = inline
        self._caller = self.create_stream("caller")
        self._inline = False

    def caller_stream(self) -> Stream:
        """One stream for all callers; the calling thread's does everything at once, and waits in place."""
        return self._caller

    def memory(self, arena: Arena) -> Slab:
        """The bytes of an arena."""
        return self._slabs[arena.number]

    def make_copy(self, source: torch.Tensor | None, place: ByteRange) -> Callable[[], object]:
        """One copy, or with jitter several that follow each other."""
        if source is None:
            raise ValueError("a device with memory copies bytes")
        target = self._bytes(place)
        given: Bytes = source.numpy()
        if self._jitter is None:
            return partial(np.copyto, target, given)
        size = -(-len(target) // PARTS) or 1
        parts = [(target[at : at + size], given[at : at + size]) for at in range(0, len(target), size)]
        return partial(_in_parts, parts, _Lane("copy", self._jitter, place.begin, inline=True).dawdle)

    def make_clear(self, place: ByteRange) -> Callable[[], object]:
        """Every byte 255."""
        return partial(self._bytes(place).fill, 255)

    def close(self) -> None:
        """All that was given is done and every thread has ended; the arenas live as long as somebody's view of them."""
        for lane in self._lanes:
            lane.stop()
        self._lanes = []
        self._slabs.clear()

    def _bytes(self, place: ByteRange) -> Bytes:
        view: Bytes = self._slabs[place.arena].bytes(place.begin, place.end - place.begin).numpy()
        return view

    def _allocate(self, arena: Arena) -> None:
        self._slabs[arena.number] = Slab(arena.size, ALIGNMENT, self.device)

    def _free(self, arena: Arena) -> None:
        self._slabs.pop(arena.number, None)

    def _create_stream(self, stream: Stream, *, urgent: bool) -> None:
        del urgent
        self._lanes.append(_Lane(stream.name, self._jitter, stream.number, inline=self._inline))

    def _destroy_stream(self, stream: Stream) -> None:
        self._lanes[stream.number].stop()

    def _submit(self, number: int, stream: Stream, work: Task) -> None:
        lane = self._lanes[stream.number]
        lane.give(partial(self._do, number, work, inline=lane.thread is None))

    def _do(self, number: int, work: Task, *, inline: bool) -> None:
        if self._failed and not inline:
            return
        self.notify_begin(number)
        try:
            work.run()
        except Exception as error:
            if inline:
                raise
            self._failure, self._failed = error, True
        self.notify_end(number)

    def _record(self, event: Event, stream: Stream) -> None:
        flag = self._latest[event.number] = Flag()
        self._lanes[stream.number].give(flag.set)

    def _wait(self, stream: Stream, event: Event) -> None:
        flag = self._latest.get(event.number)
        lane = self._lanes[stream.number]
        if flag is not None:
            lane.give(flag.wait)
        if lane.thread is None:
            self._raise()

    def _synchronize(self) -> None:
        flags = [Flag() for _ in self._lanes]
        for lane, flag in zip(self._lanes, flags, strict=True):
            lane.give(flag.set)
        for flag in flags:
            flag.wait()
        self._failed = False
        self._raise()

    def _raise(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


def _in_parts(parts: Sequence[tuple[Bytes, Bytes]], dawdle: Callable[[], None]) -> None:
    for target, given in parts:
        dawdle()
        np.copyto(target, given)
