"""Sweeps: items in the order of time, over the gaps that are free just then. For problems of any size."""

from collections.abc import Callable

import numpy as np

from tmmu.planner.pack.gaps import Gaps, SizedGaps
from tmmu.planner.pack.instance import Column, PackingInstance


def sweep_first_fit(instance: PackingInstance, *, backward: bool = False) -> Column:
    """Offsets per item, by birth (``backward``: by death, last first): each in the lowest gap that holds it."""
    gaps = Gaps(instance.max_offset * 2)
    size = instance.size.tolist()
    return _place_by_birth(instance, gaps, lambda index: gaps.take_lowest(size[index]), backward=backward)


def sweep_best_fit(instance: PackingInstance) -> Column:
    """Offsets per item, by birth: each in the tightest gap that holds it. O(n log n)."""
    gaps = SizedGaps(instance.max_offset * 2)
    size = instance.size.tolist()
    return _place_by_birth(instance, gaps, lambda index: gaps.take_tightest(size[index]))


def sweep_two_ended(instance: PackingInstance, *, short: int) -> Column:
    """Offsets per item, by birth: what lives ``short`` steps or fewer under the ceiling of the bound, the rest low."""
    gaps = Gaps(instance.max_offset * 2)
    size = instance.size.tolist()
    short_lived = (instance.death - instance.birth <= short).tolist()

    def take(index: int) -> int:
        if short_lived[index]:
            return gaps.take_highest(size[index], instance.bound)
        return gaps.take_lowest(size[index])

    return _place_by_birth(instance, gaps, take)


def sweep_long_lived_high(instance: PackingInstance) -> Column:
    """Offsets per item, by birth: what lives to the end hangs from the ceiling of the bound, the rest stands low.

    In a training step the gradients that last are made while activations die: the two stacks meet and never cross.
    """
    gaps = Gaps(instance.max_offset * 2)
    size = instance.size.tolist()
    lives_to_end = (instance.death == instance.death.max()).tolist()

    def take(index: int) -> int:
        if lives_to_end[index]:
            return gaps.take_highest(size[index], instance.bound)
        return gaps.take_lowest(size[index])

    return _place_by_birth(instance, gaps, take)


def _place_by_birth(
    instance: PackingInstance, gaps: Gaps, take: Callable[[int], int], *, backward: bool = False
) -> Column:
    """Twins of one birth go longest-lived first, then largest."""
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
