"""Portfolio of packers and walks under one limit of work; the lowest peak wins, ties go to the earlier.

The limit counts overlaps looked at, never seconds: a clock would give other plans on slower machines. It stops early
once a peak meets the bound, which no packing can beat.
"""

from dataclasses import dataclass
from typing import Final

from tmmu.planner.pack.instance import Column, PackingInstance
from tmmu.planner.pack.search import MAX_TRIES, TRIES_PER_ITEM, WALKS, walk_orders
from tmmu.planner.pack.table import PACKERS, Packer, lowest_work

BASE_WORK: Final = 500_000_000
WORK_PER_ITEM: Final = 12_000
MAX_WORK: Final = 3_500_000_000
"""Limits in overlaps looked at (4 ns each): 2 s, 5 s more for 100,000 items, 15 s at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidatePacking:
    """Offsets per item of an instance, their peak, and which method found them."""

    method: str
    offset: Column
    peak: int


def run_packer(instance: PackingInstance, packer: Packer) -> CandidatePacking:
    """The packing of one packer."""
    return make_candidate(instance, packer.name, packer.place(instance))


def make_candidate(instance: PackingInstance, method: str, offset: Column) -> CandidatePacking:
    """A candidate from offsets, with its peak."""
    return CandidatePacking(method=method, offset=offset, peak=int((offset + instance.size).max()))


def lower_of(first: CandidatePacking, second: CandidatePacking) -> CandidatePacking:
    """The candidate of lower peak; ties go to the first."""
    return second if second.peak < first.peak else first


def work_limit(items: int) -> int:
    """Work that packers and walks may take together, in overlaps looked at."""
    return min(BASE_WORK + WORK_PER_ITEM * items, MAX_WORK)


def best_candidate(instance: PackingInstance) -> CandidatePacking:
    """The lowest peak that packers and walks find within the work limit; ties go to the earlier.

    The instance has items. Stops where the bound is met.
    """
    best, work_left = best_packer(instance)
    return best_walk(instance, best, work_left)


def best_packer(instance: PackingInstance) -> tuple[CandidatePacking, int]:
    """The lowest peak among the packers, and how much of the work limit they leave."""
    work_left = work_limit(len(instance))
    best = run_packer(instance, PACKERS[0])
    for packer in PACKERS[1:]:
        cost = packer.work(instance)
        if best.peak > instance.bound and cost <= work_left:
            work_left -= cost
            best = lower_of(best, run_packer(instance, packer))
    return best, work_left


def best_walk(instance: PackingInstance, best: CandidatePacking, work_left: int) -> CandidatePacking:
    """The lowest peak among ``best`` and walks that cost no more than ``left``."""
    for index, walk in enumerate(WALKS):
        share = work_left // (len(WALKS) - index) // lowest_work(instance)
        tries = min(share, MAX_TRIES, TRIES_PER_ITEM * len(instance))
        if best.peak > instance.bound and tries:
            work_left -= tries * lowest_work(instance)
            best = lower_of(best, make_candidate(instance, walk.name, walk_orders(instance, walk, tries)))
    return best
