"""Lowest fit: items in a given order, each at the lowest offset that is free for as long as it lives."""

from typing import Any

import numpy as np

from tmmu.planner.pack.instance import Column, Index, Instance


def overlaps(instance: Instance, index: int) -> Index:
    """Every item that lives together with item ``index``, itself among them."""
    born = instance.birth[index]
    block = int(instance.first_twin[index]) // instance.block
    start, stop = block * instance.block, int(instance.stop[index])
    carried = instance.carry[block]
    near = np.flatnonzero(instance.death[start:stop] > born) + start
    return np.concatenate([carried[instance.death[carried] > born], near])


def lowest_fit(instance: Instance, order: Index, neighbors: "list[Index] | None" = None) -> Column:
    """Offsets per item. Cost per item: its overlaps, sorted; ``neighbors`` are those, when known already."""
    far = instance.far
    low = np.full(len(instance), far, dtype=instance.size.dtype)
    high = low.copy()
    size = instance.size
    for index in order.tolist():
        near = overlaps(instance, index) if neighbors is None else neighbors[index]
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
    return ends[np.argmax(starts - ends >= size)]
