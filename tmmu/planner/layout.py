"""Layouts of an arena: packed, sequential, or one range of bytes per slot."""

from itertools import accumulate

import numpy as np

from tmmu.ir.problem import PackProblem, Placement, Problem
from tmmu.planner.pack.instance import PackingInstance, prepare_instance
from tmmu.planner.pack.portfolio import CandidatePacking, best_candidate, lower_of, make_candidate, run_packer
from tmmu.planner.pack.solve import improve
from tmmu.planner.pack.table import Packer
from tmmu.planner.slots import SlotAssignment, max_live_bytes


def place_packed(problem: Problem, *, search_nodes: int = 0) -> Placement:
    """Lowest peak of packers, walks and an exact search of ``search_nodes``; proven minimal when it meets the bound."""
    instance = prepare_instance(problem, max_live_bytes(problem))
    if not len(instance):
        return _empty_placement(problem, "empty")
    best = best_candidate(instance)
    if search_nodes and best.peak > instance.bound:
        best = _search_lower(instance, best, search_nodes)
    return _placement(problem, instance, best)


def _search_lower(instance: PackingInstance, best: CandidatePacking, search_nodes: int) -> CandidatePacking:
    """The lower of ``best`` and the result of an exact search that starts from it."""
    problem = PackProblem(
        size=tuple(instance.size.tolist()),
        birth=tuple(instance.birth.tolist()),
        death=tuple(instance.death.tolist()),
        alignment=(1,) * len(instance),
        fixed=(-1,) * len(instance),
    )
    offset = improve(problem, best.offset.tolist(), search_nodes=search_nodes)
    better = make_candidate(instance, "exact", np.array(offset, dtype=best.offset.dtype))
    return lower_of(best, better)


def _empty_placement(problem: Problem, method: str) -> Placement:
    return Placement(offset=(0,) * len(problem), peak=0, bound=0, proven=True, method=method)


def pack_with(packer: Packer, problem: Problem) -> Placement:
    """Placement by one packer alone."""
    instance = prepare_instance(problem, max_live_bytes(problem))
    if not len(instance):
        return _empty_placement(problem, packer.name)
    return _placement(problem, instance, run_packer(instance, packer))


def _placement(problem: Problem, instance: PackingInstance, best: CandidatePacking) -> Placement:
    """Offsets by item of ``problem``; items of 0 bytes are not in the instance and lie at 0."""
    by_item = np.zeros(len(problem), dtype=best.offset.dtype)
    by_item[instance.item] = best.offset
    return Placement(
        offset=tuple(by_item.tolist()),
        peak=best.peak,
        bound=instance.bound,
        proven=best.peak == instance.bound,
        method=best.method,
    )


def place_sequential(problem: Problem, *, reuses_nothing: bool = True) -> Placement:
    """Items end to end, in id order; the peak is the sum of their sizes, minimal only where no byte may be reused."""
    ends = list(accumulate(problem.size, initial=0))
    offset = tuple(ends[:-1])  # mutation: sequential offsets
    bound = ends[-1] if reuses_nothing else max_live_bytes(problem)
    return Placement(offset=offset, peak=ends[-1], bound=bound, proven=ends[-1] == bound, method="sequential")


def place_slots(problem: Problem, slots: SlotAssignment) -> Placement:
    """Slots end to end, each as wide as its widest item: the specification's layout."""
    ends = list(accumulate(slots.bytes, initial=0))
    bound = max_live_bytes(problem)
    offset = tuple(ends[slot] for slot in slots.slot)
    return Placement(offset=offset, peak=ends[-1], bound=bound, proven=ends[-1] == bound, method="slots")
