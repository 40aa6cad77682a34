"""Layout: a byte offset for every item of an arena, in one of three ways."""

from itertools import accumulate
from typing import Final

import numpy as np

from tmmu.ir.problem import Placement, Problem
from tmmu.planner.pack.instance import Column, Instance, overlap_count, prepare_instance
from tmmu.planner.pack.table import PACKERS, Packer
from tmmu.planner.slots import SlotAssignment, max_live_bytes

WORK: Final = 500_000_000
WORK_PER_ITEM: Final = 6_000
"""How much a packing may cost, in overlaps looked at: about two seconds, and a second more for 40,000 items."""


def place_packed(problem: Problem) -> Placement:
    """The lowest peak that the packers find within the work limit, proven minimal when it meets the bound."""
    bound = max_live_bytes(problem)
    instance = prepare_instance(problem, bound)
    if not len(instance):
        return Placement(offset=(0,) * len(problem), peak=0, bound=bound, proven=True, method="empty")
    overlaps = overlap_count(instance)
    left = WORK + WORK_PER_ITEM * len(instance)
    best: tuple[int, str, Column] | None = None
    for packer in PACKERS:
        cost = packer.work(len(instance), overlaps)
        if best and (best[0] == bound or cost > left):
            continue
        left -= cost
        offset = packer.place(instance)
        peak = int((offset + instance.size).max())
        if best is None or peak < best[0]:
            best = (peak, packer.name, offset)
    assert best
    return _placement(problem, instance, best[2], best[1])


def pack_with(packer: Packer, problem: Problem) -> Placement:
    """What one packer alone makes of a problem."""
    instance = prepare_instance(problem, max_live_bytes(problem))
    if not len(instance):
        return Placement(offset=(0,) * len(problem), peak=0, bound=0, proven=True, method=packer.name)
    return _placement(problem, instance, packer.place(instance), packer.name)


def _placement(problem: Problem, instance: Instance, offset: Column, method: str) -> Placement:
    """Offsets by the problem's own index; items of no bytes are at 0."""
    by_item = np.zeros(len(problem), dtype=offset.dtype)
    by_item[instance.item] = offset
    peak = int((offset + instance.size).max())
    return Placement(
        offset=tuple(by_item.tolist()),
        peak=peak,
        bound=instance.bound,
        proven=peak == instance.bound,
        method=method,
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
