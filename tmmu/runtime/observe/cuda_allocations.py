"""Allocs and frees of CUDA's caching allocator, from the history that it keeps of itself.

Sizes are those that torch asks for, not those of blocks. A free counts when it is asked for.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch

from tmmu.eager.observed import BEFORE, AllocationEvent
from tmmu.torch_private import cuda_history, mark_cuda_history, start_cuda_history, stop_cuda_history

_INSIDE: Final = "tmmu call "
_AFTER: Final = "tmmu after "


@dataclass(frozen=True, slots=True)
class CudaHistory:
    """The allocator's history of a device: switched on and off, marked, and read as its snapshot."""

    start: Callable[[torch.device], None] = start_cuda_history
    stop: Callable[[torch.device], None] = stop_cuda_history
    mark: Callable[[str], None] = mark_cuda_history
    snapshot: Callable[[torch.device], Mapping[str, Any]] = cuda_history


class CudaAllocationLog:
    """A block in which allocs and frees on ``device`` are noted; ``events`` has them afterwards.

    A history that is recorded already ends with it.
    """

    def __init__(self, device: torch.device, history: CudaHistory | None = None) -> None:
        self.events: tuple[AllocationEvent, ...] = ()
        self._device, self._history = device, history or CudaHistory()

    def __enter__(self) -> "CudaAllocationLog":
        self._history.start(self._device)
        self._history.mark("")
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if sys.exc_info()[0] is None:
                traces = self._history.snapshot(self._device)["device_traces"]
                self.events = tuple(allocation_events(traces[self._device.index or 0]))
        finally:
            self._history.mark("")
            self._history.stop(self._device)

    @contextmanager
    def in_call(self, call: int) -> Iterator[None]:
        """Block of call number ``call``, or of all that comes ``BEFORE`` the run."""
        self._history.mark(f"{_INSIDE}{call}")
        try:
            yield
        finally:
            self._history.mark(f"{_AFTER}{call}")


def allocation_events(entries: Iterable[Mapping[str, Any]]) -> Iterator[AllocationEvent]:
    """What the entries of one device's trace say, by the mark that stood when each was made.

    An entry without one belongs where the entry before it does.
    """
    sizes: dict[int, int] = {}
    call, inside = BEFORE, True
    for entry in entries:
        call, inside = _call_of(entry.get("user_metadata", "")) or (call, inside)
        if entry["action"] == "alloc":
            sizes[entry["addr"]] = entry["size"]
            yield AllocationEvent(call=call, inside=inside, bytes=entry["size"], address=entry["addr"])
        elif entry["action"] == "free_requested":  # the size of its block, where the alloc came before the recording
            size = sizes.pop(entry["addr"], entry["size"])
            yield AllocationEvent(call=call, inside=inside, bytes=-size, address=entry["addr"])


def _call_of(mark: str) -> tuple[int, bool] | None:
    for prefix in (_INSIDE, _AFTER):
        if mark.startswith(prefix):
            return int(mark[len(prefix) :]), prefix == _INSIDE
    return None
