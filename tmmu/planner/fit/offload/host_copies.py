"""A rewrite with copies to the host and back."""

from collections.abc import Mapping
from dataclasses import replace

from tmmu.ir.ids import OpId
from tmmu.ir.rewrite import FROM_HOST, TO_HOST, Part, Rewrite
from tmmu.planner.fit.offload.timetable import Stay
from tmmu.planner.fit.offload.trips import Trip


def with_host_copies(rewrite: Rewrite, stays: Mapping[Trip, Stay]) -> Rewrite:
    """The rows of ``rewrite``, with a copy to the host before each ``out``, and one back before each ``back``."""
    before: dict[int, list[tuple[OpId, str, Part]]] = {}
    ordered = sorted(stays.items(), key=lambda pair: (pair[0].first, pair[0].buffer))
    for trip, stay in ordered:
        before.setdefault(stay.out, []).append((trip.origin, TO_HOST, (trip.value,)))
    for trip, stay in ordered:
        before.setdefault(stay.back, []).append((trip.origin, FROM_HOST, (trip.value,)))
    rows = list[tuple[OpId, str, Part]]()
    for row, same in enumerate(zip(rewrite.origin, rewrite.kind, rewrite.part, strict=True)):
        rows += [*before.get(row, ()), same]
    origin, kind, part = zip(*rows, strict=True)
    return replace(rewrite, origin=origin, kind=kind, part=part)
