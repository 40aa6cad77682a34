"""What the allocator of a rank holds at most in a step, for programs that tests run as ranks of ``gloo``."""

import gc
from collections.abc import Callable, Iterable
from typing import Any

from torch.distributed.tensor import DTensor

from tmmu.runtime.observe.cpu_allocations import CpuAllocationLog


def storages_of(tensors: Iterable[Any]) -> dict[int, int]:
    """Bytes of the storages of these tensors, by address; of a distributed one, of its part."""
    local = [tensor._local_tensor if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    return {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in local}


def peak_of_steps(step: Callable[[], object], kept: Callable[[], dict[int, int]], *, steps: int = 8) -> int:
    """The fewest bytes of some steps: a thread of gloo may hold what it has sent a little longer than a step needs it.

    ``kept``: storages that are there before a step, which may let go of them. Two steps come before, uncounted.
    """
    for _ in range(2):
        step()
    gc.collect()
    gc.disable()
    return min(_peak_of_step(step, kept()) for _ in range(steps))


def _peak_of_step(step: Callable[[], object], live: dict[int, int]) -> int:
    log = CpuAllocationLog()
    with log, log.in_call(0):
        step()
    level = peak = sum(live.values())
    for event in log.events:
        if event.bytes > 0:
            live[event.address] = event.bytes
            level += event.bytes
        else:
            level -= live.pop(event.address, 0)
        peak = max(peak, level)
    return peak
