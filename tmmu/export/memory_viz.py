"""A snapshot as ``torch.cuda.memory._snapshot()`` makes it, for torch's own tools and their viewer in the browser."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Final

from tmmu.eager.peak import eager_run
from tmmu.errors import InvalidConfig
from tmmu.export.allocations import (
    Allocation,
    AllocationMoment,
    AllocationTrace,
    SegmentRange,
    SourceFrame,
    eager_allocations,
    planned_allocations,
)
from tmmu.export.pickle_text import Plain, encode_pickle
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan

EAGER: Final = "eager"
_ADDRESS: Final = attrgetter("address")


def encode_memory_viz(plan: Plan, graph: Graph | None, run: str) -> bytes:
    """The pickle of the snapshot of a plan's stack, or of the storages of ``run`` "eager".

    ``InvalidConfig`` where the graph does not say what eager holds in the run that is planned.
    """
    if run != EAGER:
        return encode_pickle(snapshot(planned_allocations(plan, graph)))
    eager = eager_run(graph, plan.mode) if graph else None
    if eager is None:
        what = "--run eager: nothing says what the model holds when it is run as it is"
        raise InvalidConfig(what, fix="plan the model again with this version, and keep the graph beside its plan")
    return encode_pickle(snapshot(eager_allocations(eager)))


def snapshot(trace: AllocationTrace) -> dict[str, Plain]:
    """Segments as they are at the end, and on device 0 every event until then; times are positions."""
    live = sorted((trace.allocations[row] for row in trace.live), key=_ADDRESS)
    return {
        "segments": [_segment(segment, live) for segment in trace.segments],
        "device_traces": [list(_events(trace))],
    }


def _segment(segment: SegmentRange, live: Sequence[Allocation]) -> Plain:
    start = bisect_left(live, segment.address, key=_ADDRESS)
    inside = live[start : bisect_left(live, segment.address + segment.size, key=_ADDRESS)]
    allocated = sum(allocation.size for allocation in inside)
    return {
        "device": 0,
        "address": segment.address,
        "total_size": segment.size,
        "stream": 0,
        "segment_type": "small" if segment.is_small else "large",
        "allocated_size": allocated,
        "active_size": allocated,
        "requested_size": sum(allocation.request for allocation in inside),
        "segment_pool_id": [0, 0],
        "is_expandable": False,
        "frames": [],
        "blocks": list(_blocks(segment, inside)),
    }


def _blocks(segment: SegmentRange, inside: Sequence[Allocation]) -> Iterator[Plain]:
    """All bytes of the segment in order: what is allocated, and what is free between and behind."""
    address = segment.address
    for allocation in inside:
        if allocation.address > address:
            yield _block(address, allocation.address - address, 0, "inactive", ())
        yield _block(allocation.address, allocation.size, allocation.request, "active_allocated", allocation.frames)
        address = allocation.address + allocation.size
    if address < segment.address + segment.size:
        yield _block(address, segment.address + segment.size - address, 0, "inactive", ())


def _block(address: int, size: int, request: int, state: str, frames: Sequence[SourceFrame]) -> Plain:
    return {
        "address": address,
        "size": size,
        "requested_size": request,
        "state": state,
        "frames": _frames(frames),
    }


def _events(trace: AllocationTrace) -> Iterator[Plain]:
    """A segment comes before the first alloc at its position."""
    waiting = sorted(trace.segments, key=lambda segment: (segment.position, segment.address))[::-1]
    for moment in trace.moments:
        while moment.is_alloc and waiting and waiting[-1].position <= moment.position:
            yield _segment_event(waiting.pop())
        yield from _moment_events(moment, trace.allocations[moment.row])
    yield from map(_segment_event, reversed(waiting))


def _segment_event(segment: SegmentRange) -> Plain:
    # One category must be "unknown": the viewer adds it where it is missing, and fails at that.
    event = _event("segment_alloc", segment.address, segment.size, segment.position, ())
    return {**event, "category": "unknown"}


def _moment_events(moment: AllocationMoment, allocation: Allocation) -> Iterator[Plain]:
    actions = ("alloc",) if moment.is_alloc else ("free_requested", "free_completed")
    for action in actions:
        event = _event(action, allocation.address, allocation.request, moment.position, allocation.frames)
        yield {**event, "category": allocation.category} if allocation.category and moment.is_alloc else event


def _event(action: str, address: int, size: int, position: int, frames: Sequence[SourceFrame]) -> dict[str, Plain]:
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": 0,
        "time_us": position,
        "frames": _frames(frames),
    }


def _frames(frames: Sequence[SourceFrame]) -> list[Plain]:
    return [{"name": frame.name, "filename": frame.file, "line": frame.line} for frame in frames]
