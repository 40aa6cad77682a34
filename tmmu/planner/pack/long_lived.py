"""Two-sided fit: items that live to the end are placed high below the bound, all others low.

In a training step the gradients that live to the end take the bytes of dying activations: one stack grows downwards
as the other shrinks, and short-lived items fit between them.
"""

from typing import Any

import numpy as np

from tmmu.planner.pack import orders
from tmmu.planner.pack.instance import Column, PackingInstance


def place_long_lived_high(instance: PackingInstance) -> Column:
    """Offsets per item, placed by pressure, then duration: at the highest free offset below the bound, or the lowest.

    Costs as much as a lowest fit.
    """
    low = np.full(len(instance), instance.max_offset, dtype=instance.size.dtype)
    high = low.copy()
    lives_to_end = (instance.death == instance.death.max()).tolist()
    for index in orders.by_pressure(instance).tolist():
        neighbors = instance.neighbors(index)
        start, stop = _free_ranges(low[neighbors], high[neighbors], instance.max_offset)
        size = instance.size[index]
        offset = _highest_free_offset(start, stop, size, instance.bound) if lives_to_end[index] else -1
        low[index] = offset if offset >= 0 else start[(stop - start >= size).argmax()]
        high[index] = low[index] + size
    return low


def _free_ranges(low: Column, high: Column, max_offset: int) -> tuple[Column, Column]:
    """Starts and stops of free ranges, lowest first; empty where stop <= start. See ``lowest._gaps`` for why."""
    start, stop = np.append(high, 0), np.append(low, max_offset)
    start.sort()
    stop.sort()
    return start, stop


def _highest_free_offset(start: Column, stop: Column, size: Any, ceiling: int) -> Any:
    """The highest free offset at which ``size`` bytes end at ``ceiling`` or below, or -1."""
    top = np.minimum(stop, ceiling)
    fits = np.flatnonzero(top - start >= size)
    return top[fits[-1]] - size if len(fits) else -1
