"""Lowest fit: items in a given order, each at the lowest offset that is free for as long as it lives."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from tmmu.planner.pack.instance import Column, Index, PackingInstance

Choose: TypeAlias = Callable[[Column, Column, Any], Any]
"""From where free ranges start and how long they are: the offset of a size."""


def lowest_fit(instance: PackingInstance, order: Index) -> Column:
    """Offsets per item. Costs, per item, a sort of what overlaps it."""
    return _fit(instance, order, _lowest_gap)


def tight_fit(instance: PackingInstance, order: Index) -> Column:
    """The same, each in the shortest free range that holds it, the lowest of equals."""
    return _fit(instance, order, _tightest_gap)


def _fit(instance: PackingInstance, order: Index, choose: Choose) -> Column:
    max_offset, size, cached = instance.max_offset, instance.size, instance.cached_neighbors
    low = np.full(len(instance), max_offset, dtype=size.dtype)
    high = low.copy()
    for index in order.tolist():
        neighbors = cached[index] if cached else instance.neighbors(index)
        offset = choose(*_gaps(low[neighbors], high[neighbors], max_offset), size[index])
        low[index] = offset
        high[index] = offset + size[index]
    return low


def _gaps(low: Column, high: Column, max_offset: int) -> tuple[Column, Column]:
    """Where free ranges start and how long they are, lowest first, among intervals that may overlap each other.

    Free is what lies between the m-th end and the m-th next start, both sorted apart: there, as many
    intervals have ended as have begun; lengths of no more than 0 are no ranges. Items without a place yet are at
    ``far`` and sort behind all others.
    """
    count = len(low)
    starts = np.empty(count + 1, dtype=low.dtype)
    starts[:count] = low
    starts[count] = max_offset
    ends = np.empty(count + 1, dtype=low.dtype)
    ends[0] = 0
    ends[1:] = high
    starts.sort()
    ends.sort()
    return ends, starts - ends


def _lowest_gap(start: Column, length: Column, size: Any) -> Any:
    return start[(length >= size).argmax()]


def _tightest_gap(start: Column, length: Column, size: Any) -> Any:
    enough = length >= size
    return start[enough][length[enough].argmin()]
