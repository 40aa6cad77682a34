"""A GPU: its own streams and events, copies that the copy engines make while kernels run, no host wait but ``settle``.

Copies are asynchronous from pinned memory only. From any other, an asynchronous copy would return before the driver has
read its source, and the order of events would say nothing about it; so those copies make the host wait.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
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
    """One GPU by index. Works are launched by the host at once, in its order, on the stream that they are given to.

    It cannot tell when a work begins or ends; what was issued can be recorded and judged by ``races``.
    """

    def __init__(self, index: int = 0, observers: Sequence[Observer] = (), *, cuda: Any = torch.cuda) -> None:
        require_device(torch.device("cuda", index), cuda)
        super().__init__(observers)
        self._cuda = cuda
        self.device = torch.device("cuda", index)
        self.registrar = CudaRegistrar(cuda.cudart(), self._forget_error)
        self.node = device_node(pci_address(cuda.get_device_properties(self.device)))
        self._slabs: dict[int, Slab] = {}
        self._handles: list[Any] = []
        self._marks: list[Any] = []
        self._callers: dict[int, Stream] = {}
        self._adopted: Any = None

    def caller_stream(self) -> Stream:
        """The stream that is torch's current one now."""
        handle = self._cuda.current_stream(self.device)
        known = self._callers.get(handle.cuda_stream)
        if known is None:
            self._adopted = handle
            known = self._callers[handle.cuda_stream] = self.create_stream(f"caller {len(self._callers)}")
        return known

    def memory(self, arena: Arena) -> Slab:
        """The bytes of an arena."""
        return self._slabs[arena.number]

    def create_event(self) -> Event:
        """A CUDA event without a clock."""
        made = super().create_event()
        self._marks.append(self._cuda.Event(enable_timing=False, blocking=False))
        return made

    def make_copy(self, source: torch.Tensor | None, place: ByteRange) -> Callable[[], object]:
        """One ``cudaMemcpyAsync`` into a view that is made here, once."""
        if source is None:
            raise ValueError("a device with memory copies bytes")
        target = self._bytes(place)
        return partial(target.copy_, source, non_blocking=source.is_pinned())

    def make_clear(self, place: ByteRange) -> Callable[[], object]:
        """Every byte 255, by a kernel on the stream that runs it."""
        return partial(self._bytes(place).fill_, 255)

    def close(self) -> None:
        """The GPU has done all that it was given, and its memory goes back to torch."""
        if self._slabs or self._handles:
            self._cuda.synchronize(self.device)
        self._slabs.clear()
        self._handles, self._marks, self._callers = [], [], {}

    def _forget_error(self) -> None:
        """The next kernel is launched for nothing, so that it and no other is told of an error from before."""
        with suppress(RuntimeError):
            torch.zeros(1, device=self.device)

    def _bytes(self, place: ByteRange) -> torch.Tensor:
        return self._slabs[place.arena].bytes(place.begin, place.end - place.begin)

    def _allocate(self, arena: Arena) -> None:
        self._slabs[arena.number] = Slab(arena.size, ALIGNMENT, self.device)

    def _free(self, arena: Arena) -> None:
        self._slabs.pop(arena.number, None)

    def _create_stream(self, stream: Stream, *, urgent: bool) -> None:
        del stream  # the handles are in the order of the streams
        adopted, self._adopted = self._adopted, None
        made = adopted or self._cuda.Stream(self.device, priority=URGENT if urgent else 0)
        self._handles.append(made)

    def _destroy_stream(self, stream: Stream) -> None:
        self._handles[stream.number].synchronize()

    def _submit(self, number: int, stream: Stream, work: Task) -> None:
        self.notify_begin(number)
        with self._cuda.stream(self._handles[stream.number]):
            work.run()
        self.notify_end(number)

    def _record(self, event: Event, stream: Stream) -> None:
        self._marks[event.number].record(self._handles[stream.number])

    def _wait(self, stream: Stream, event: Event) -> None:
        self._handles[stream.number].wait_event(self._marks[event.number])

    def _synchronize(self) -> None:
        self._cuda.synchronize(self.device)


def pci_address(properties: Any) -> str:
    """``domain:bus:device.function`` of a GPU, as the system names it; empty where torch does not know."""
    domain, bus, device = (getattr(properties, f"pci_{name}_id", None) for name in ("domain", "bus", "device"))
    if domain is None or bus is None or device is None:
        return ""
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"
