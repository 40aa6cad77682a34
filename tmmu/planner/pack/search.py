"""Local search over packing orders: pack, move the items at the peak forward in the order, pack again.

State: the current order and the best offsets so far. The walk accepts every new order, better or not, and returns the
best packing seen; it is deterministic, ends after ``tries`` packings or at the bound, and costs a lowest fit per step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from tmmu.planner.pack import orders
from tmmu.planner.pack.instance import Column, Index, PackingInstance
from tmmu.planner.pack.lowest import lowest_fit

Fit: TypeAlias = Callable[[PackingInstance, Index], Column]

MAX_TRIES: Final = 200
TRIES_PER_ITEM: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkStart:
    """The first order of a walk, and the quarters of its position that an item at the peak moves to."""

    name: str
    order: Callable[[PackingInstance], Index]
    quarters: int


WALKS: Final = (
    WalkStart(name="walk_pressure_size", order=orders.by_pressure_and_size, quarters=2),
    WalkStart(name="walk_pressure", order=orders.by_pressure, quarters=2),
    WalkStart(name="walk_duration", order=orders.by_duration, quarters=3),
    WalkStart(name="walk_birth", order=orders.by_birth, quarters=2),
)


def walk_orders(instance: PackingInstance, start: WalkStart, tries: int, *, fit: Fit = lowest_fit) -> Column:
    """Offsets of the least peak among ``tries`` packings, one at least, none after the bound is met."""
    order = start.order(instance)
    best = fit(instance, order)
    offset, best_peak = best, int((best + instance.size).max())
    for _ in range(tries - 1):
        if best_peak == instance.bound:
            break
        order = _promote(order, offset + instance.size, start.quarters)
        offset = fit(instance, order)
        peak = int((offset + instance.size).max())
        if peak < best_peak:
            best, best_peak = offset, peak
    return best


def _promote(order: Index, ends: Column, quarters: int) -> Index:
    # Positions x 4 leave room for fractions: a promoted item goes right before the one at its new position.
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order), dtype=np.int64) * 4
    top = ends == ends.max()
    rank[top] = rank[top] // 4 * quarters - 1
    return np.argsort(rank, kind="stable")
