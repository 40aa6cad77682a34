"""What operators allocate inside themselves, beside the plan, counted by torch's allocator and named by operator."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch.autograd.profiler import record_function

from tmmu.errors import InvalidConfig
from tmmu.torch_private import is_profiler_enabled, memory_profiler_config, start_profiler, stop_profiler

_PREFIX: Final = "tmmu step "


@dataclass(frozen=True, slots=True, kw_only=True)
class Unplanned:
    """Of one operator in one run: calls that allocate, bytes asked for in all, and the most live at once.

    The names of the fields are keys in the output of ``tmmu run --json``.
    """

    operator: str
    calls: int
    bytes: int
    peak: int


class Allocations:
    """Counts of torch's CPU allocator by step, from the profiler's events."""

    def __init__(self) -> None:
        self.calls: dict[int, int] = {}
        self.total: dict[int, int] = {}
        self.peak: dict[int, int] = {}

    def step_scope(self, index: int) -> AbstractContextManager[Any]:
        """While inside, allocations count for this step."""
        return record_function(f"{_PREFIX}{index}")

    def add_events(self, threads: Sequence[Sequence[Any]]) -> None:
        """Adds the events of each thread, in order; allocations outside any step count for step -1."""
        for events in threads:
            step, live_bytes, depth, step_depth = -1, 0, 0, 0
            for event in events:
                kind = event.kind()
                if kind == "push":
                    depth += 1
                    if event.name().startswith(_PREFIX):
                        step, live_bytes, step_depth = int(event.name()[len(_PREFIX) :]), 0, depth
                elif kind == "pop":
                    step = -1 if depth == step_depth else step
                    depth -= 1
                elif kind == "memory_alloc":
                    live_bytes += event.cpu_memory_usage()
                    self._count(step, event.cpu_memory_usage(), live_bytes)

    def counts(self, step: int) -> tuple[int, int]:
        """(allocations, most bytes live at once) of a step."""
        return self.calls.get(step, 0), self.peak.get(step, 0)

    def _count(self, step: int, size: int, live_bytes: int) -> None:
        if size > 0:
            self.calls[step] = self.calls.get(step, 0) + 1
            self.total[step] = self.total.get(step, 0) + size
            self.peak[step] = max(self.peak.get(step, 0), live_bytes)

    def by_operator(self, names: Sequence[str]) -> tuple[Unplanned, ...]:
        """Sums by operator, the largest peak first."""
        totals: dict[str, Unplanned] = {}
        for step, total in self.total.items():
            if step >= 0:
                old = totals.get(names[step], Unplanned(operator=names[step], calls=0, bytes=0, peak=0))
                peak = max(old.peak, self.peak[step])
                totals[names[step]] = replace(old, calls=old.calls + 1, bytes=old.bytes + total, peak=peak)
        return tuple(sorted(totals.values(), key=lambda row: (-row.peak, -row.bytes, row.operator)))


class CudaAllocations(Allocations):
    """Counts of CUDA's caching allocator by step."""

    def __init__(self, device: torch.device, *, cuda: Any = torch.cuda) -> None:
        super().__init__()
        self._device, self._cuda = device, cuda

    @contextmanager
    def step_scope(self, index: int) -> Iterator[None]:
        """While inside, allocations count for this step."""
        self._cuda.reset_peak_memory_stats(self._device)
        before = self._cuda.memory_stats(self._device)
        try:
            yield
        finally:
            after = self._cuda.memory_stats(self._device)
            calls = after["allocation.all.allocated"] - before["allocation.all.allocated"]
            if calls:
                self.calls[index] = calls
                self.total[index] = after["allocated_bytes.all.allocated"] - before["allocated_bytes.all.allocated"]
                self.peak[index] = after["allocated_bytes.all.peak"] - before["allocated_bytes.all.current"]


@contextmanager
def count_allocations() -> Iterator[Allocations]:
    """Yields counts of torch's CPU allocations inside the block, which are filled when it ends.

    ``INVALID_CONFIG`` where a profiler is running: torch has one at a time.
    """
    if is_profiler_enabled():
        raise InvalidConfig("a profiler is running", fix="bind, or measure, outside of it")
    allocations = Allocations()
    start_profiler(memory_profiler_config())
    try:
        yield allocations
    finally:
        allocations.add_events(stop_profiler())
