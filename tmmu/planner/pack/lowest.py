"""Lowest fit: items in a given order, each at the lowest offset that is free for as long as it lives."""

from typing import Any

import numpy as np

from tmmu.planner.pack.instance import Column, Index, Instance


def lowest_fit(instance: Instance, order: Index) -> Column:
    """Offsets per item. Costs, per item, a sort of what overlaps it."""
    far, size, known = instance.far, instance.size, instance.remembered
    low = np.full(len(instance), far, dtype=size.dtype)
    high = low.copy()
    for index in order.tolist():
        near = known[index] if known else instance.neighbors(index)
        offset = _lowest_gap(low[near], high[near], size[index], far)
        low[index] = offset
        high[index] = offset + size[index]
    return low


def _lowest_gap(low: Column, high: Column, size: Any, far: int) -> Any:
    """The lowest offset of ``size`` free bytes among intervals that may overlap each other.

    Free is what lies between the m-th end and the m-th next start, both sorted apart: there, as many
    intervals have ended as have begun. Items without a place yet are at ``far`` and sort behind all others.
    """
    count = len(low)
    starts = np.empty(count + 1, dtype=low.dtype)
    starts[:count] = low
    starts[count] = far
    ends = np.empty(count + 1, dtype=low.dtype)
    ends[0] = 0
    ends[1:] = high
    starts.sort()
    ends.sort()
    return ends[(starts - ends >= size).argmax()]
