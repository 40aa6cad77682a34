"""TVM's unified static memory planner: greedy by size, greedy by conflicts, hill climb.

The two greedy ones put a buffer above every buffer placed already that it conflicts with. The hill climb packs by
first fit and, up to 500 times, swaps two buffers of the order: one packed before a buffer that tops the peak and in
conflict with it, and another such one or one before that; a worse result is kept now and then, and ever less often.
"""

import numpy as np

from benchmarks.peers.gaps import by, conflicts, first_fit, on_top, placed_in_order
from tmmu.planner.pack.instance import Column, Index, PackingInstance

ATTEMPTS = 500


def greedy_by_size(instance: PackingInstance) -> Column:
    """Larger first, then more conflicts."""
    return placed_in_order(instance, by(-instance.size, -conflicts(instance)), on_top)


def greedy_by_conflicts(instance: PackingInstance) -> Column:
    """More conflicts first, then larger."""
    return placed_in_order(instance, by(-conflicts(instance), -instance.size), on_top)


def hill_climb(instance: PackingInstance) -> Column:
    """The last packing that was accepted; seeded, so the same each time."""
    pick = np.random.default_rng(0)
    order = by(-instance.size, -conflicts(instance))
    swap, kept, peak = (0, 0), np.empty(0), 0
    for attempt in range(ATTEMPTS):
        low = placed_in_order(instance, order, first_fit)
        top = int((low + instance.size).max())
        if attempt == 0 or top < peak or pick.integers(100) < 50 * (top - peak) // top // attempt:
            kept, peak = low, top
        else:
            order = _swapped(order, *swap)
        swap = _neighbours(instance, order, kept, pick)
        order = _swapped(order, *swap)
        if peak == instance.bound:
            break
    return kept


def _swapped(order: Index, one: int, other: int) -> Index:
    order = order.copy()
    order[[one, other]] = order[[other, one]]
    return order


def _neighbours(instance: PackingInstance, order: Index, low: Column, pick: np.random.Generator) -> tuple[int, int]:
    """Two positions of the order to swap: among what was packed before an item at the peak, and before that."""
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    high = low + instance.size
    at_peak = np.flatnonzero(high == high.max())
    first = _before(instance, position, int(pick.choice(at_peak)))
    if not len(first):
        return 0, 0
    one = int(pick.choice(first))
    second = np.concatenate([_before(instance, position, int(item)) for item in first])
    pool = second if len(second) and pick.integers(100) > 25 else first
    return int(position[one]), int(position[int(pick.choice(pool))])


def _before(instance: PackingInstance, position: Index, item: int) -> Index:
    near = instance.neighbors(item)
    return near[position[near] < position[item]]
