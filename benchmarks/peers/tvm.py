"""TVM's unified static memory planner: greedy by size, greedy by conflicts, hill climb.

The greedy ones put a buffer above all placed buffers that it conflicts with. The hill climb packs by first fit and, up
to 500 times, swaps two buffers of the order: one that conflicts with a buffer at the peak and is packed before it, and
a second such one or one that precedes the first in the same way. A worse result is accepted with falling probability.
"""

import numpy as np

from benchmarks.peers.gaps import conflict_counts, first_fit, on_top, place_in_order, sort_by
from tmmu.planner.pack.instance import Column, Index, PackingInstance

ATTEMPTS = 500


def greedy_by_size(instance: PackingInstance) -> Column:
    """Larger first, then more conflicts."""
    return place_in_order(instance, sort_by(-instance.size, -conflict_counts(instance)), on_top)


def greedy_by_conflicts(instance: PackingInstance) -> Column:
    """More conflicts first, then larger."""
    return place_in_order(instance, sort_by(-conflict_counts(instance), -instance.size), on_top)


def hill_climb(instance: PackingInstance) -> Column:
    """The last accepted packing; the seed is fixed, so that it is the same in every run."""
    random = np.random.default_rng(0)
    order = sort_by(-instance.size, -conflict_counts(instance))
    swap, accepted, peak = (0, 0), np.empty(0), 0
    for attempt in range(ATTEMPTS):
        low = place_in_order(instance, order, first_fit)
        top = int((low + instance.size).max())
        if attempt == 0 or top < peak or random.integers(100) < 50 * (top - peak) // top // attempt:
            accepted, peak = low, top
        else:
            order = _swap(order, *swap)
        swap = _positions_to_swap(instance, order, accepted, random)
        order = _swap(order, *swap)
        if peak == instance.bound:
            break
    return accepted


def _swap(order: Index, first: int, second: int) -> Index:
    order = order.copy()
    order[[first, second]] = order[[second, first]]
    return order


def _positions_to_swap(
    instance: PackingInstance, order: Index, low: Column, random: np.random.Generator
) -> tuple[int, int]:
    """Two positions to swap: an item packed before one at the peak, and one packed before an item like that."""
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    high = low + instance.size
    at_peak = np.flatnonzero(high == high.max())
    before_peak = _conflicts_before(instance, position, int(random.choice(at_peak)))
    if not len(before_peak):
        return 0, 0
    first = int(random.choice(before_peak))
    two_before = np.concatenate([_conflicts_before(instance, position, int(item)) for item in before_peak])
    pool = two_before if len(two_before) and random.integers(100) > 25 else before_peak
    return int(position[first]), int(position[int(random.choice(pool))])


def _conflicts_before(instance: PackingInstance, position: Index, item: int) -> Index:
    neighbors = instance.neighbors(item)
    return neighbors[position[neighbors] < position[item]]
