"""Layout: a byte offset for every item of an arena, in one of three ways."""

from itertools import accumulate

import numpy as np

from tmmu.ir.problem import PackProblem, Placement, Problem
from tmmu.planner.pack.instance import Instance, prepare_instance
from tmmu.planner.pack.portfolio import Try, best_try, measured, try_packer
from tmmu.planner.pack.solve import improve
from tmmu.planner.pack.table import Packer
from tmmu.planner.slots import SlotAssignment, max_live_bytes


def place_packed(problem: Problem, *, nodes: int = 0) -> Placement:
    """The lowest peak that packers, walks and a search of ``nodes`` find; proven minimal when it meets the bound."""
    instance = prepare_instance(problem, max_live_bytes(problem))
    if not len(instance):
        return _nothing(problem, "empty")
    best = best_try(instance)
    if nodes and best.peak > instance.bound:
        best = _searched(instance, best, nodes)
    return _placement(problem, instance, best)


def _searched(instance: Instance, best: Try, nodes: int) -> Try:
    """The better of ``best`` and what an exact search of so many nodes makes of it."""
    problem = PackProblem(
        size=tuple(instance.size.tolist()),
        birth=tuple(instance.birth.tolist()),
        death=tuple(instance.death.tolist()),
        alignment=(1,) * len(instance),
        fixed=(-1,) * len(instance),
    )
    found = improve(problem, best.offset.tolist(), nodes=nodes)
    better = measured(instance, "exact", np.array(found, dtype=best.offset.dtype))
    return min(best, better, key=lambda one: one.peak)


def _nothing(problem: Problem, method: str) -> Placement:
    return Placement(offset=(0,) * len(problem), peak=0, bound=0, proven=True, method=method)


def pack_with(packer: Packer, problem: Problem) -> Placement:
    """What one packer alone makes of a problem."""
    instance = prepare_instance(problem, max_live_bytes(problem))
    if not len(instance):
        return _nothing(problem, packer.name)
    return _placement(problem, instance, try_packer(instance, packer))


def _placement(problem: Problem, instance: Instance, best: Try) -> Placement:
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
