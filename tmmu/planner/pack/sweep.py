"""Sweeps over time: items in birth order, each into a gap that is free at its birth. For problems of any size.

State: the free list at the current time, and the offsets so far. Invariant: when an item is placed, exactly the items
live at its birth hold bytes, since items that end by then are released first. Each item is placed and released once.
O(n log n) with ``SizedGaps``; O(n x gaps) with ``Gaps``.
"""

from collections.abc import Callable

import numpy as np

from tmmu.planner.pack.gaps import Gaps, SizedGaps
from tmmu.planner.pack.instance import Column, PackingInstance


def sweep_first_fit(instance: PackingInstance, *, backward: bool = False) -> Column:
    """Offsets per item: each in the lowest gap that holds it, by birth (``backward``: by death, latest first)."""
    gaps = Gaps(instance.max_offset * 2)
    size = instance.size.tolist()
    return _place_by_birth(instance, gaps, lambda index: gaps.take_lowest(size[index]), backward=backward)


def sweep_best_fit(instance: PackingInstance) -> Column:
    """Offsets per item: each in the smallest gap that holds it. O(n log n)."""
    gaps = SizedGaps(instance.max_offset * 2)
    size = instance.size.tolist()
    return _place_by_birth(instance, gaps, lambda index: gaps.take_tightest(size[index]))


def sweep_two_ended(instance: PackingInstance, *, short: int) -> Column:
    """Offsets per item: those that live at most ``short`` positions high below the bound, the others low."""
    return _place_at_two_ends(instance, (instance.death - instance.birth <= short).tolist())


def sweep_long_lived_high(instance: PackingInstance) -> Column:
    """Offsets per item: those that live to the end high below the bound, the others low.

    In a training step gradients are written while activations die: the two stacks meet and never cross.
    """
    return _place_at_two_ends(instance, (instance.death == instance.death.max()).tolist())


def _place_at_two_ends(instance: PackingInstance, is_high: list[bool]) -> Column:
    gaps = Gaps(instance.max_offset * 2)
    size = instance.size.tolist()

    def take(index: int) -> int:
        if is_high[index]:
            return gaps.take_highest(size[index], instance.bound)
        return gaps.take_lowest(size[index])

    return _place_by_birth(instance, gaps, take)


def _place_by_birth(
    instance: PackingInstance, gaps: Gaps, take: Callable[[int], int], *, backward: bool = False
) -> Column:
    """Offsets by ``take`` in birth order; of one birth the longest-lived first, then the largest."""
    birth = (-instance.death if backward else instance.birth).tolist()
    death = (-instance.birth if backward else instance.death).tolist()
    size = instance.size.tolist()
    starts = sorted(range(len(instance)), key=lambda i: (birth[i], -death[i], -size[i], i))
    ends = sorted(range(len(instance)), key=lambda i: (death[i], i))
    offset = [0] * len(instance)
    ended = 0
    for index in starts:
        while death[ends[ended]] <= birth[index]:
            gaps.release(offset[ends[ended]], size[ends[ended]])
            ended += 1
        offset[index] = take(index)
    return np.array(offset, dtype=instance.size.dtype)
