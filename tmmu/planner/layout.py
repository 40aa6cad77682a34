"""Layout: a byte offset for every item of an arena, in one of three ways."""

from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np

from tmmu.ir.problem import Placement, Problem
from tmmu.planner.pack.instance import Column, Instance, prepare_instance
from tmmu.planner.pack.search import MAX_TRIES, TRIES_PER_ITEM, WALKS, walk
from tmmu.planner.pack.table import PACKERS, Packer, lowest_work
from tmmu.planner.slots import SlotAssignment, max_live_bytes

BASE_WORK: Final = 500_000_000
WORK_PER_ITEM: Final = 5_000
MOST_WORK: Final = 3_500_000_000
"""How much a packing may cost, in overlaps looked at: two seconds, and two more for 100,000 items; never over 15."""


def place_packed(problem: Problem) -> Placement:
    """The lowest peak that packers and walks find within the work limit; proven minimal when it meets the bound."""
    instance = prepare_instance(problem, max_live_bytes(problem))
    if not len(instance):
        return _nothing(problem, "empty")
    left = min(BASE_WORK + WORK_PER_ITEM * len(instance), MOST_WORK)
    best = _place(instance, PACKERS[0])
    for packer in PACKERS[1:]:
        cost = packer.work(instance)
        if best.peak > instance.bound and cost <= left:
            left -= cost
            best = min(best, _place(instance, packer), key=_peak)
    for index, step in enumerate(WALKS):
        share = left // (len(WALKS) - index) // lowest_work(instance)
        tries = min(share, MAX_TRIES, TRIES_PER_ITEM * len(instance))
        if best.peak > instance.bound and tries:
            left -= tries * lowest_work(instance)
            best = min(best, _try(instance, step.name, walk(instance, step, tries)), key=_peak)
    return _placement(problem, instance, best)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Try:
    method: str
    offset: Column
    peak: int


def _place(instance: Instance, packer: Packer) -> _Try:
    return _try(instance, packer.name, packer.place(instance))


def _try(instance: Instance, method: str, offset: Column) -> _Try:
    return _Try(method=method, offset=offset, peak=int((offset + instance.size).max()))


def _peak(one: _Try) -> int:
    return one.peak


def _nothing(problem: Problem, method: str) -> Placement:
    return Placement(offset=(0,) * len(problem), peak=0, bound=0, proven=True, method=method)


def pack_with(packer: Packer, problem: Problem) -> Placement:
    """What one packer alone makes of a problem."""
    instance = prepare_instance(problem, max_live_bytes(problem))
    if not len(instance):
        return _nothing(problem, packer.name)
    return _placement(problem, instance, _place(instance, packer))


def _placement(problem: Problem, instance: Instance, best: _Try) -> Placement:
    """Offsets by the problem's own index; items of no bytes are at 0."""
    by_item = np.zeros(len(problem), dtype=best.offset.dtype)
    by_item[instance.item] = best.offset
    return Placement(
        offset=tuple(by_item.tolist()),
        peak=best.peak,
        bound=instance.bound,
        proven=best.peak == instance.bound,
        method=best.method,
    )


def place_sequential(problem: Problem) -> Placement:
    """One item after another, in id order: the arena is the sum."""
    ends = list(accumulate(problem.size, initial=0))
    return Placement(offset=tuple(ends[:-1]), peak=ends[-1], bound=ends[-1], proven=True, method="sequential")


def place_slots(problem: Problem, slots: SlotAssignment) -> Placement:
    """Each slot backed by its own bytes, one slot after another: the specification's layout."""
    ends = list(accumulate(slots.bytes, initial=0))
    bound = max_live_bytes(problem)
    offset = tuple(ends[slot] for slot in slots.slot)
    return Placement(offset=offset, peak=ends[-1], bound=bound, proven=ends[-1] == bound, method="slots")
