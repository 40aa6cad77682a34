"""The heuristics in their order, under one limit of work: the lowest peak among them."""

from dataclasses import dataclass
from typing import Final

from tmmu.planner.pack.instance import Column, Instance
from tmmu.planner.pack.search import MAX_TRIES, TRIES_PER_ITEM, WALKS, walk
from tmmu.planner.pack.table import PACKERS, Packer, lowest_work

BASE_WORK: Final = 500_000_000
WORK_PER_ITEM: Final = 12_000
MOST_WORK: Final = 3_500_000_000
"""How much a packing may cost, in overlaps looked at: two seconds, and five more for 100,000 items; never over 15."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """Offsets per item of an instance, their peak, and which method found them."""

    method: str
    offset: Column
    peak: int


def try_packer(instance: Instance, packer: Packer) -> Try:
    """What one packer makes of an instance."""
    return measured(instance, packer.name, packer.place(instance))


def measured(instance: Instance, method: str, offset: Column) -> Try:
    """These offsets, with their peak."""
    return Try(method=method, offset=offset, peak=int((offset + instance.size).max()))


def work_limit(items: int) -> int:
    """What packers and walks together may cost."""
    return min(BASE_WORK + WORK_PER_ITEM * items, MOST_WORK)


def best_try(instance: Instance) -> Try:
    """The lowest peak that packers and walks find within the work limit; ties go to the earlier.

    The instance has items. Stops where the bound is met.
    """
    best, left = best_packer(instance)
    return best_walk(instance, best, left)


def best_packer(instance: Instance) -> tuple[Try, int]:
    """The lowest peak among the packers, and how much of the work limit they leave."""
    left = work_limit(len(instance))
    best = try_packer(instance, PACKERS[0])
    for packer in PACKERS[1:]:
        cost = packer.work(instance)
        if best.peak > instance.bound and cost <= left:
            left -= cost
            best = min(best, try_packer(instance, packer), key=_peak)
    return best, left


def best_walk(instance: Instance, best: Try, left: int) -> Try:
    """The lowest peak among ``best`` and walks that cost no more than ``left``."""
    for index, step in enumerate(WALKS):
        share = left // (len(WALKS) - index) // lowest_work(instance)
        tries = min(share, MAX_TRIES, TRIES_PER_ITEM * len(instance))
        if best.peak > instance.bound and tries:
            left -= tries * lowest_work(instance)
            best = min(best, measured(instance, step.name, walk(instance, step, tries)), key=_peak)
    return best


def _peak(one: Try) -> int:
    return one.peak
