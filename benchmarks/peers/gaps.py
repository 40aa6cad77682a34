"""List packing, as most peers do it: items in an order, each at the offset that a rule picks among the free ranges."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from tmmu.planner.pack.instance import Column, Index, PackingInstance

ChooseOffset: TypeAlias = Callable[[Column, Column, Any], Any]
"""(starts, lengths, size) -> offset. Free ranges are lowest first, and the last one is as good as endless."""


def place_in_order(instance: PackingInstance, order: Index, choose: ChooseOffset) -> Column:
    """Offsets per item, placed in ``order``, each where ``choose`` says among the ranges free during its whole life."""
    max_offset, size, cached = instance.max_offset, instance.size, instance.cached_neighbors
    low = np.full(len(instance), max_offset, dtype=size.dtype)
    high = low.copy()
    for index in order.tolist():
        neighbors = cached[index] if cached else instance.neighbors(index)
        neighbors = neighbors[low[neighbors] < max_offset]
        starts = np.sort(np.append(low[neighbors], max_offset))
        ends = np.sort(np.append(high[neighbors], 0))
        low[index] = choose(ends, starts - ends, size[index])
        high[index] = low[index] + size[index]
    return low


def first_fit(start: Column, length: Column, size: Any) -> Any:
    """The lowest range that is long enough."""
    return start[(length >= size).argmax()]


def best_fit(start: Column, length: Column, size: Any) -> Any:
    """The shortest range that is long enough, the lowest of equals."""
    return start[np.where(length >= size, length, np.iinfo(np.int64).max).argmin()]


def on_top(start: Column, length: Column, size: Any) -> Any:  # noqa: ARG001 - a rule like the others
    """Above everything that is live at the same time; holes are ignored."""
    return start[-1]


def sort_by(*keys: Column) -> Index:
    """The order by ascending keys, the first key being the most significant; ties go to the earlier item."""
    return np.lexsort(tuple(reversed(keys)))


def conflict_counts(instance: PackingInstance) -> Index:
    """Per item, how many others are live at some time when it is."""
    ended = np.searchsorted(np.sort(instance.death), instance.birth, side="right")
    return instance.stop - ended - 1
