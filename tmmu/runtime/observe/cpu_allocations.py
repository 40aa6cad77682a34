"""Allocs and frees of torch's CPU allocator, from the profiler's events.

Of a tensor that was made before the block the profiler does not see the free: what is followed is made inside.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final

from torch.autograd.profiler import record_function

from tmmu.eager.observed import BEFORE, AllocationEvent
from tmmu.errors import InvalidConfig
from tmmu.torch_private import event_tree, is_allocation, is_profiler_enabled, start_event_profiler

_PREFIX: Final = "tmmu call "


class CpuAllocationLog:
    """A block in which allocs and frees are noted; ``events`` has them afterwards.

    ``INVALID_CONFIG`` where a profiler is running: torch has one at a time.
    """

    def __init__(self) -> None:
        self.events: tuple[AllocationEvent, ...] = ()

    def __enter__(self) -> "CpuAllocationLog":
        if is_profiler_enabled():
            raise InvalidConfig("a profiler is running", fix="measure outside of it")
        start_event_profiler()
        return self

    def __exit__(self, *_: object) -> None:
        self.events = tuple(allocation_events(event_tree()))

    def in_call(self, call: int) -> AbstractContextManager[Any]:
        """Block of call number ``call``, or of all that comes ``BEFORE`` the run."""
        return record_function(f"{_PREFIX}{call}")


def allocation_events(roots: Iterable[Any]) -> Iterator[AllocationEvent]:
    """The allocations in a forest of events, each in the order in which it happened, with the call around them."""
    call, inside = BEFORE, True
    # A tree is as deep as the user's calls are, which may be deeper than Python's stack.
    pending: list[Any] = [iter(roots)]
    scopes: list[int] = []
    while pending:
        event = next(pending[-1], None)
        if event is None:
            pending.pop()
            if scopes and scopes[-1] == len(pending):
                scopes.pop()
                inside = False
        elif is_allocation(event):
            fields = event.extra_fields
            if fields.alloc_size:
                yield AllocationEvent(call=call, inside=inside, bytes=fields.alloc_size, address=fields.ptr)
        else:
            if event.name.startswith(_PREFIX):
                call, inside = int(event.name[len(_PREFIX) :]), True
                scopes.append(len(pending))
            pending.append(iter(event.children))
