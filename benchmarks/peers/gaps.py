"""What the placements of the peers have in common: an order, and a rule for the offset of the next item."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from tmmu.planner.pack.instance import Column, Index, PackingInstance

Choose: TypeAlias = Callable[[Column, Column, Any], Any]
"""From where free ranges start and how long they are, lowest first, the last one endless: the offset of a size."""


def placed_in_order(instance: PackingInstance, order: Index, choose: Choose) -> Column:
    """Offsets per item: each in turn goes where ``choose`` says, among the ranges that are free as long as it lives."""
    far, size, known = instance.max_offset, instance.size, instance.cached_neighbors
    low = np.full(len(instance), far, dtype=size.dtype)
    high = low.copy()
    for index in order.tolist():
        near = known[index] if known else instance.neighbors(index)
        near = near[low[near] < far]
        starts = np.sort(np.append(low[near], far))
        ends = np.sort(np.append(high[near], 0))
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
    """Above all that lives together with it: no hole is looked for."""
    return start[-1]


def by(*keys: Column) -> Index:
    """The order of ascending keys, the first one first; ties go to the earlier item."""
    return np.lexsort(tuple(reversed(keys)))


def conflicts(instance: PackingInstance) -> Index:
    """Per item, how many others live at the same time."""
    ended = np.searchsorted(np.sort(instance.death), instance.birth, side="right")
    return instance.stop - ended - 1
