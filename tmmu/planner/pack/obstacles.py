"""Heuristics for fixed offsets and mixed alignments: lowest fit around the fixed items, in five orders and in walks.

Invariants: fixed items never move, and every other offset is a multiple of its item's own alignment. A sweep above all
fixed items comes first, so that there is always an answer, in near-linear time; orders and walks then run while the
work limit lasts and the bound is not met, and the lowest peak wins, ties to the earlier.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from tmmu.ir.problem import PackProblem, Problem
from tmmu.planner.pack import orders
from tmmu.planner.pack.instance import WORD_LIMIT, Column, Index, PackingInstance, prepare_instance
from tmmu.planner.pack.portfolio import CandidatePacking, lower_of, make_candidate, work_limit
from tmmu.planner.pack.search import MAX_TRIES, TRIES_PER_ITEM, WALKS, walk_orders
from tmmu.planner.pack.sweep import sweep_best_fit
from tmmu.planner.pack.table import lowest_work

ORDERS: Final[tuple[tuple[str, Callable[[PackingInstance], Index]], ...]] = (
    ("size", orders.by_size),
    ("pressure", orders.by_pressure),
    ("area", orders.by_area),
    ("duration", orders.by_duration),
    ("birth", orders.by_birth),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstrainedInstance:
    """An instance with each item's alignment and its fixed offset, or -1."""

    instance: PackingInstance
    alignment: Column
    fixed: Column


def prepare_constrained(problem: PackProblem, bound: int) -> ConstrainedInstance:
    """The instance of items of 1 byte or more; Python integers where offsets could exceed 62 bits."""
    plain = Problem(size=problem.size, birth=problem.birth, death=problem.death)
    instance = prepare_instance(plain, bound)
    ends = (offset + size for offset, size in zip(problem.fixed, problem.size, strict=True) if offset >= 0)
    highest = max(ends, default=0) + sum(problem.size) + sum(problem.alignment)
    wide = 4 * highest >= WORD_LIMIT
    if wide:
        instance = replace(instance, size=instance.size.astype(object), max_offset=4 * highest)
    dtype = object if wide else np.int64
    return ConstrainedInstance(
        instance=instance,
        alignment=np.array(problem.alignment, dtype=dtype)[instance.item],
        fixed=np.array(problem.fixed, dtype=dtype)[instance.item],
    )


def fit_around_fixed(instance: PackingInstance, order: Index, *, constrained: ConstrainedInstance) -> Column:
    """Offsets per item: fixed ones, then those of ``order``, each at its lowest free aligned offset."""
    max_offset, size = instance.max_offset, instance.size
    is_fixed = constrained.fixed >= 0
    low = np.where(is_fixed, constrained.fixed, max_offset)
    high = np.where(is_fixed, constrained.fixed + size, max_offset)
    for index in order[~is_fixed[order].astype(bool)].tolist():
        neighbors = instance.neighbors(index)
        offset = _lowest_aligned(low[neighbors], high[neighbors], size[index], constrained.alignment[index], max_offset)
        low[index] = offset
        high[index] = offset + size[index]
    return low


def _lowest_aligned(low: Column, high: Column, size: Any, step: Any, max_offset: int) -> Any:
    """The lowest multiple of ``step`` with ``size`` free bytes; gaps as in ``lowest._gaps``."""
    starts = np.append(low, max_offset)
    ends = np.append(high, 0)
    starts.sort()
    ends.sort()
    # Rounding up keeps the order of ends, and shortens a gap only by what alignment makes unusable.
    ends += (-ends) % step
    return ends[(starts - ends >= size).argmax()]


def sweep_above_fixed(problem: PackProblem, constrained: ConstrainedInstance) -> Column:
    """Offsets per item by a best-fit sweep above all fixed items, at the widest alignment. O(n log n)."""
    free = constrained.instance.item[(constrained.fixed < 0).astype(bool)].tolist()
    is_fixed = constrained.fixed >= 0
    low = constrained.fixed.copy()
    if not free:
        return low
    step = max(problem.alignment[item] for item in free)
    padded = Problem(
        size=tuple(-(-problem.size[item] // step) * step for item in free),
        birth=tuple(problem.birth[item] for item in free),
        death=tuple(problem.death[item] for item in free),
    )
    base = int(np.where(is_fixed, constrained.fixed + constrained.instance.size, 0).max())
    swept = sweep_best_fit(prepare_instance(padded, 0))
    # Above all that is fixed, an offset may pass 64 bits though every item of the problem ends below.
    low[~is_fixed.astype(bool)] = swept.astype(low.dtype) + (base + -base % step)
    return low


def best_around_fixed(problem: PackProblem, constrained: ConstrainedInstance) -> CandidatePacking:
    """The packing of the lowest peak among sweep, orders and walks within the work limit."""
    instance = constrained.instance
    work_left = work_limit(len(instance))
    cost = lowest_work(instance)
    best = make_candidate(instance, "above", sweep_above_fixed(problem, constrained))
    for name, order in ORDERS:
        if best.peak > instance.bound and cost <= work_left:
            work_left -= cost
            offset = fit_around_fixed(instance, order(instance), constrained=constrained)
            best = lower_of(best, make_candidate(instance, name, offset))
    for index, walk in enumerate(WALKS):
        tries = min(work_left // (len(WALKS) - index) // cost, MAX_TRIES, TRIES_PER_ITEM * len(instance))
        if best.peak > instance.bound and tries:
            work_left -= tries * cost
            offset = walk_orders(instance, walk, tries, fit=partial(fit_around_fixed, constrained=constrained))
            best = lower_of(best, make_candidate(instance, walk.name, offset))
    return best


def fit_rounds(problem: PackProblem, rounds: Sequence[Sequence[int]], placed: Mapping[int, int]) -> tuple[int, ...]:
    """Offsets of all items: ``placed`` as given, then the rounds, last first, each item in its lowest gap.

    The inverse of ``reduce.droppable_rounds``: in that order every item fits below its target.
    """
    fixed = tuple(placed.get(item, offset) for item, offset in enumerate(problem.fixed))
    constrained = prepare_constrained(replace(problem, fixed=fixed), 0)
    row = np.argsort(constrained.instance.item)
    order = row[np.array([item for items in reversed(rounds) for item in items], dtype=np.int64)]
    offsets = fit_around_fixed(constrained.instance, order, constrained=constrained)[row]
    return tuple(offsets.tolist())
