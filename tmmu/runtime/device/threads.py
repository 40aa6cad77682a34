"""The CPU backend: a thread for each stream, memory copies for copies, ``threading.Event`` for records.

The caller's stream has no thread: its tasks run at once on the calling thread, and its waits block it, as a program on
the CPU would. ``inline=False`` gives it a thread, for callers that submit all their computing as tasks.

With a ``Jitter`` every stream pauses at random before each thing that it does, and copies land in parts with pauses in
between, so that whatever is not ordered soon happens in another order.
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
"""Of an arena, in bytes: the largest alignment that a plan can ask for in paged memory."""
PARTS: Final = 4

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Jitter:
    """Random pauses of up to ``max_seconds``, reproducible by ``seed``."""

    seed: int
    max_seconds: float


class _StreamQueue:
    """The queue of a stream and the thread that empties it; without a thread, jobs are done where they are put."""

    def __init__(self, name: str, jitter: Jitter | None, number: int, *, inline: bool) -> None:
        self._random = None if jitter is None else Random(jitter.seed * 1009 + number)
        self._max_seconds = 0.0 if jitter is None else jitter.max_seconds
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self.thread = None if inline else Thread(target=self._work, name=f"tmmu {name}", daemon=True)
        if self.thread is not None:
            self.thread.start()

    def put(self, job: Callable[[], object]) -> None:
        """The job is done after all that were put before."""
        if self.thread is None:
            self.pause()
            job()
        else:
            self._queue.put(job)

    def pause(self) -> None:
        """Sleeps every other time, if there is jitter."""
        if self._random is not None and self._random.random() < 0.5:
            sleep(self._random.random() * self._max_seconds)

    def stop(self) -> None:
        """All jobs are done and the thread has ended. May be called twice."""
        if self.thread is not None:
            self._queue.put(None)
            self.thread.join()
            self.thread = None

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            self.pause()
            job()


class ThreadsDevice(MemoryDevice):
    """Arenas in host memory, a thread per stream.

    After a task fails in a stream's thread, tasks of all threads are skipped until the next ``synchronize``. The
    failure is raised once, where the host next waits: there, or in a wait of the caller's stream.
    """

    def __init__(
        self, observers: Sequence[Observer] = (), *, jitter: Jitter | None = None, inline: bool = True
    ) -> None:
        """With ``inline`` the caller's stream is the calling thread."""
        super().__init__(observers)
        self.device = torch.device("cpu")
        self._jitter = jitter
        self._queues: list[_StreamQueue] = []
        self._slabs: dict[int, Slab] = {}
        self._latest: dict[int, Flag] = {}
        self._failure: Exception | None = None
        self._failed = False
        self._inline = inline
        self._caller = self.create_stream("caller")
        self._inline = False

    def caller_stream(self) -> Stream:
        """One stream for all callers."""
        return self._caller

    def memory(self, arena: Arena) -> Slab:
        """The bytes of an arena."""
        return self._slabs[arena.number]

    def make_copy(self, source: torch.Tensor | None, place: ByteRange) -> Callable[[], object]:
        """One copy, or with jitter several that follow each other."""
        if source is None:
            raise ValueError("a device with memory copies bytes")
        return self._copy_run(source.numpy(), place)

    def make_move(self, source: ByteRange, target: ByteRange) -> Callable[[], object]:
        """A copy as of ``make_copy``."""
        return self._copy_run(self._bytes(source), target)

    def _copy_run(self, array: Bytes, place: ByteRange) -> Callable[[], object]:
        target = self._bytes(place)
        if self._jitter is None:
            return partial(np.copyto, target, array)
        size = -(-len(target) // PARTS) or 1
        parts = [(target[low : low + size], array[low : low + size]) for low in range(0, len(target), size)]
        return partial(_copy_parts, parts, _StreamQueue("copy", self._jitter, place.begin, inline=True).pause)

    def make_clear(self, place: ByteRange) -> Callable[[], object]:
        """Every byte 255."""
        return partial(self._bytes(place).fill, 255)

    def make_zero(self, place: ByteRange) -> Callable[[], object]:
        """Every byte 0."""
        return partial(self._bytes(place).fill, 0)

    def call_back(self, stream: Stream, callback: Callable[[], object]) -> None:
        """By the stream's own thread."""
        self._queues[stream.number].put(callback)

    def close(self) -> None:
        """All tasks have run and every thread has ended. An arena's memory lives as long as there is a view of it."""
        for queue in self._queues:
            queue.stop()
        self._queues = []
        self._slabs.clear()

    def _bytes(self, place: ByteRange) -> Bytes:
        view: Bytes = self._slabs[place.arena].bytes(place.begin, place.end - place.begin).numpy()
        return view

    def _allocate(self, arena: Arena) -> None:
        self._slabs[arena.number] = Slab(arena.size, ALIGNMENT, self.device)

    def _release(self, arena: Arena) -> None:
        self._slabs.pop(arena.number, None)

    def _create_stream(self, stream: Stream, *, urgent: bool) -> None:
        del urgent
        self._queues.append(_StreamQueue(stream.name, self._jitter, stream.number, inline=self._inline))

    def _destroy_stream(self, stream: Stream) -> None:
        self._queues[stream.number].stop()

    def _submit(self, number: int, stream: Stream, task: Task) -> None:
        queue = self._queues[stream.number]
        queue.put(partial(self._run_task, number, task, inline=queue.thread is None))

    def _run_task(self, number: int, task: Task, *, inline: bool) -> None:
        if self._failed and not inline:
            return
        self.notify_begin(number)
        try:
            task.run()
        except Exception as error:
            if inline:
                raise
            self._failure, self._failed = error, True
        self.notify_end(number)

    def _record(self, event: Event, stream: Stream) -> None:
        # A new flag for each record: a wait that was issued before keeps the flag of the record that it captured.
        flag = self._latest[event.number] = Flag()
        self._queues[stream.number].put(flag.set)

    def _wait(self, stream: Stream, event: Event) -> None:
        flag = self._latest.get(event.number)
        queue = self._queues[stream.number]
        if flag is not None:
            queue.put(flag.wait)
        if queue.thread is None:
            self._raise_failure()

    def _wait_on_host(self, event: Event) -> None:
        flag = self._latest.get(event.number)
        if flag is not None:
            flag.wait()
        self._raise_failure()

    def _synchronize(self) -> None:
        flags = [Flag() for _ in self._queues]
        for queue, flag in zip(self._queues, flags, strict=True):
            queue.put(flag.set)
        for flag in flags:
            flag.wait()
        self._failed = False
        self._raise_failure()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


def _copy_parts(parts: Sequence[tuple[Bytes, Bytes]], pause: Callable[[], None]) -> None:
    for target, source in parts:
        pause()
        np.copyto(target, source)
