"""The GPU backend: CUDA streams and events, and copies that the copy engines make while kernels run.

Copies are asynchronous from pinned memory only. From pageable memory an asynchronous copy could return before the
driver has read its source, and no event would tell when it has; so those copies are blocking: the host waits for each.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final

import torch

from tmmu.runtime.device.interface import Arena, ByteRange, Event, Observer, Stream, Task
from tmmu.runtime.device.memory import MemoryDevice
from tmmu.runtime.device.numa import device_node
from tmmu.runtime.device.pinning import CudaRegistrar
from tmmu.runtime.memory.sizing import require_device
from tmmu.runtime.memory.slab import Slab

ALIGNMENT: Final = 512
URGENT: Final = -1
"""CUDA counts priorities downwards from 0. They order kernels; copies go to the engines as they come."""


class CudaDevice(MemoryDevice):
    """One GPU by index. Tasks are launched at once, in the host's order, on the stream that they are given to.

    It cannot tell when a task begins or ends on the GPU: ``on_begin`` and ``on_end`` mean the launch, so tags are of
    no use here. What was issued can be recorded and judged by ``races``.
    """

    def __init__(self, index: int = 0, observers: Sequence[Observer] = (), *, cuda: Any = torch.cuda) -> None:
        require_device(torch.device("cuda", index), cuda)
        super().__init__(observers)
        self._cuda = cuda
        self.device = torch.device("cuda", index)
        self.registrar = CudaRegistrar(cuda.cudart(), self._clear_last_error)
        self.node = device_node(pci_address(cuda.get_device_properties(self.device)))
        self._slabs: dict[int, Slab] = {}
        self._cuda_streams: list[Any] = []
        self._cuda_events: list[Any] = []
        self._callers: dict[int, Stream] = {}
        self._adopted: Any = None
        self._callbacks: dict[int, _HostCallbacks] = {}

    def caller_stream(self) -> Stream:
        """The stream that is torch's current one now; each CUDA stream is adopted once, by its handle."""
        current = self._cuda.current_stream(self.device)
        stream = self._callers.get(current.cuda_stream)
        if stream is None:
            self._adopted = current
            stream = self._callers[current.cuda_stream] = self.create_stream(f"caller {len(self._callers)}")
        return stream

    def memory(self, arena: Arena) -> Slab:
        """The bytes of an arena."""
        return self._slabs[arena.number]

    def create_event(self) -> Event:
        """A CUDA event without timing."""
        event = super().create_event()
        self._cuda_events.append(self._cuda.Event(enable_timing=False, blocking=False))
        return event

    def make_copy(self, source: torch.Tensor | None, place: ByteRange) -> Callable[[], object]:
        """One ``cudaMemcpyAsync`` into a view that is made here, once."""
        if source is None:
            raise ValueError("a device with memory copies bytes")
        target = self._bytes(place)
        return partial(target.copy_, source, non_blocking=source.is_pinned())

    def make_move(self, source: ByteRange, target: ByteRange) -> Callable[[], object]:
        """One ``cudaMemcpyAsync`` between views that are made here, once."""
        here, there = self._bytes(source), self._bytes(target)
        return partial(there.copy_, here, non_blocking=here.is_pinned() or there.is_pinned())

    def make_clear(self, place: ByteRange) -> Callable[[], object]:
        """Every byte 255, by a kernel on the stream that runs it."""
        return partial(self._bytes(place).fill_, 255)

    def make_zero(self, place: ByteRange) -> Callable[[], object]:
        """Every byte 0, by a kernel on the stream that runs it."""
        return partial(self._bytes(place).fill_, 0)

    def call_back(self, stream: Stream, callback: Callable[[], object]) -> None:
        """By a thread for each stream, which waits for an event of its own: torch has no ``cudaLaunchHostFunc``."""
        event = self._cuda.Event(enable_timing=False, blocking=True)
        event.record(self._cuda_streams[stream.number])
        if stream.number not in self._callbacks:
            self._callbacks[stream.number] = _HostCallbacks(stream.name)
        self._callbacks[stream.number].put(event, callback)

    def close(self) -> None:
        """The GPU has run all tasks, and its memory goes back to torch."""
        if self._slabs or self._cuda_streams:
            self._cuda.synchronize(self.device)
        for callbacks in self._callbacks.values():
            callbacks.stop()
        self._callbacks = {}
        self._slabs.clear()
        self._cuda_streams, self._cuda_events, self._callers = [], [], {}

    def _clear_last_error(self) -> None:
        """A kernel is launched for nothing, so that it and no other gets a pending CUDA error."""
        with suppress(RuntimeError):
            torch.zeros(1, device=self.device)

    def _bytes(self, place: ByteRange) -> torch.Tensor:
        return self._slabs[place.arena].bytes(place.begin, place.end - place.begin)

    def _allocate(self, arena: Arena) -> None:
        self._slabs[arena.number] = Slab(arena.size, ALIGNMENT, self.device)

    def _release(self, arena: Arena) -> None:
        self._slabs.pop(arena.number, None)

    def _create_stream(self, stream: Stream, *, urgent: bool) -> None:
        # CUDA streams are in the order of ours, so that a stream's number is its index.
        del stream
        adopted, self._adopted = self._adopted, None
        self._cuda_streams.append(adopted or self._cuda.Stream(self.device, priority=URGENT if urgent else 0))

    def _destroy_stream(self, stream: Stream) -> None:
        self._cuda_streams[stream.number].synchronize()

    def _submit(self, number: int, stream: Stream, task: Task) -> None:
        self.notify_begin(number)
        with self._cuda.stream(self._cuda_streams[stream.number]):
            task.run()
        self.notify_end(number)

    def _record(self, event: Event, stream: Stream) -> None:
        self._cuda_events[event.number].record(self._cuda_streams[stream.number])

    def _wait(self, stream: Stream, event: Event) -> None:
        self._cuda_streams[stream.number].wait_event(self._cuda_events[event.number])

    def _wait_on_host(self, event: Event) -> None:
        self._cuda_events[event.number].synchronize()

    def _synchronize(self) -> None:
        self._cuda.synchronize(self.device)


class _HostCallbacks:
    """A thread that waits for events in their order, sleeping, and makes a call after each."""

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[tuple[Any, Callable[[], object]] | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name=f"tmmu {name} landed", daemon=True)
        self._thread.start()

    def put(self, event: Any, callback: Callable[[], object]) -> None:
        """The call is made after the event."""
        self._queue.put((event, callback))

    def stop(self) -> None:
        """All calls are made and the thread has ended."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (entry := self._queue.get()) is not None:
            event, callback = entry
            with suppress(RuntimeError):  # what failed is raised where the host waits for the task itself
                event.synchronize()
            callback()


def pci_address(properties: Any) -> str:
    """``domain:bus:device.function`` of a GPU in the system's notation; empty where torch does not know it."""
    domain, bus, device = (getattr(properties, f"pci_{name}_id", None) for name in ("domain", "bus", "device"))
    if domain is None or bus is None or device is None:
        return ""
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"
