"""Lowest fit: items in a given order, each at the lowest offset that is free during its whole life.

State: per item its interval of bytes, at ``max_offset`` while it has none. Each step looks only at the items that
overlap the new one in time and needs no free list: see ``_gaps``. n steps of a sort each: O(sum of live log live).
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from tmmu.planner.pack.instance import Column, Index, PackingInstance

Choose: TypeAlias = Callable[[Column, Column, Any], Any]
"""(starts, lengths, size): the offset at which an item of ``size`` goes."""


def lowest_fit(instance: PackingInstance, order: Index) -> Column:
    """Offsets per item, each in the lowest gap that holds it."""
    return _fit(instance, order, _lowest_gap)


def tight_fit(instance: PackingInstance, order: Index) -> Column:
    """Offsets per item, each in the shortest gap that holds it, the lowest of equals."""
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
    """Starts and lengths of the gaps among intervals that may overlap, lowest first; a length <= 0 is no gap.

    Starts and ends are sorted independently. Between the m-th end and the (m+1)-th start as many intervals have ended
    as have begun, so that the range is free. Unplaced items are at ``max_offset`` and sort behind all others.
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
