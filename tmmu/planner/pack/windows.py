"""Repair of a packing by exact search on windows (large-neighbourhood search), under a cap that falls.

A *window* is an item that ends above the cap with those nearest to it in time and bytes: they are packed anew below the
cap, all others stay fixed. Once no item ends above the cap, every item moves into the lowest gap in turn, and the cap
falls again, in longer steps; where windows of all sizes fail, in shorter ones, and from the start with twice the nodes.

Invariants: offsets are sound after each window, since all that overlaps it in time is fixed there; the peak never
rises. Bounded by work, in search nodes x items of a window; neither a clock nor a fraction decides anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tmmu.ir.problem import PackProblem, Problem
from tmmu.planner.pack import exact
from tmmu.planner.pack.exact.orders import splitmix64
from tmmu.planner.pack.instance import Column, Index, prepare_instance
from tmmu.planner.pack.lowest import lowest_fit
from tmmu.planner.pack.skyline.progress import Report, SearchProgress

WINDOW_SIZES: Final = (45, 70, 100, 150)
ASPECTS: Final = (4, 16, 1, 64)
"""Quarters of the peak that lie as far away as the whole of time."""
NODE_LIMITS: Final = (500, 1_000, 2_000, 4_000, 8_000)
FIRST_STEPS: Final = 32
FEWEST_STEPS: Final = 8
MOST_STEPS: Final = 4_096
"""The cap falls by one part in so many of what lies between goal and peak."""
TRIES: Final = 24
SETUP_NODES: Final = 40
"""Nodes that are visited in the time that a window takes before its search."""
SETTLE_WORK: Final = 60
OVERLAPS_PER_WORK: Final = 50
"""Work of an item that settles (12 us), and overlaps that are looked at in the time of one node and item (0.2 us)."""
DISTANCE: Final = 1 << 14


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedItems:
    """A problem of one alignment with sound offsets, in arrays; times are ranks of moments."""

    problem: PackProblem
    birth: Index
    death: Index
    size: Column
    offset: Column

    @property
    def end(self) -> Column:
        """Per item."""
        return self.offset + self.size

    @property
    def peak(self) -> int:
        """The highest end."""
        return int(self.end.max())


@dataclass(slots=True, kw_only=True)
class WindowBudget:
    """Work left, and the number of windows so far, from which the next is drawn."""

    left: int
    turn: int = 0


def lower_windows(
    problem: PackProblem, offset: Sequence[int], *, goal: int, work: int, report: Report | None = None
) -> tuple[tuple[int, ...], int]:
    """(offsets no higher than the sound ``offset``, work spent), down to ``goal`` at most.

    All items have bytes, a span and one alignment, of which sizes are multiples; none is fixed.
    """
    budget = WindowBudget(left=work)
    placed = _settle(_placed_items(problem, offset), budget)
    for nodes in NODE_LIMITS:
        steps = FIRST_STEPS
        while steps <= MOST_STEPS and budget.left > 0 and placed.peak > goal:
            cap = placed.peak - max(1, (placed.peak - goal) // steps)
            cleared = _clear_above(placed, cap, nodes, budget)
            steps = steps * 2 if cleared is None else max(FEWEST_STEPS, steps * 2 // 3)
            placed = placed if cleared is None else _settle(cleared, budget)
            if report is not None:
                permille = min(1000 - 1000 * budget.left // max(work, 1), 1000)
                report(SearchProgress(width=0, peak=placed.peak, permille=permille))
    return tuple(placed.offset.tolist()), work - budget.left


def _placed_items(problem: PackProblem, offset: Sequence[int]) -> PlacedItems:
    birth, death = (np.array(times, dtype=np.int64) for times in (problem.birth, problem.death))
    moments = np.unique(np.concatenate([birth, death]))
    return PlacedItems(
        problem=problem,
        birth=np.searchsorted(moments, birth),
        death=np.searchsorted(moments, death),
        size=np.array(problem.size, dtype=np.int64),
        offset=np.array(offset, dtype=np.int64),
    )


def _moved(placed: PlacedItems, offset: Column) -> PlacedItems:
    return PlacedItems(problem=placed.problem, birth=placed.birth, death=placed.death, size=placed.size, offset=offset)


def _settle(placed: PlacedItems, budget: WindowBudget) -> PlacedItems:
    """Every item, the lowest first, in the lowest gap that holds it; no item ends higher."""
    plain = Problem(size=placed.problem.size, birth=placed.problem.birth, death=placed.problem.death)
    instance = prepare_instance(plain, 0)
    budget.left -= SETTLE_WORK * len(instance) + instance.overlaps // OVERLAPS_PER_WORK
    order = np.argsort(placed.offset[instance.item], kind="stable")
    offset = placed.offset.copy()
    offset[instance.item] = lowest_fit(instance, order)
    return _moved(placed, offset)


def _clear_above(placed: PlacedItems, cap: int, nodes: int, budget: WindowBudget) -> PlacedItems | None:
    """A packing whose peak is the cap or less; None if some item's windows all fail, or the work is spent."""
    above = np.flatnonzero(placed.end > cap)
    for item in above[np.argsort(-placed.end[above], kind="stable")].tolist():
        tries = 0
        while placed.end[item] > cap:
            if tries == TRIES or budget.left <= 0:
                return None
            window = nearest_items(placed, item, budget.turn, WINDOW_SIZES[tries % 4], ASPECTS[tries // 4 % 4])
            tries, budget.turn = tries + 1, budget.turn + 1
            placed = _pack_window(placed, window, cap, nodes, budget)
    return placed


def nearest_items(placed: PlacedItems, item: int, turn: int, count: int, aspect: int) -> Index:
    """The item and those nearest to one of its moments and to its offset, at most ``count`` in all."""
    birth, death, offset = placed.birth, placed.death, placed.offset
    first, last = int(birth[item]), int(death[item])
    moment = first + splitmix64(turn) % (last - first)
    # Shifted, so that products with DISTANCE and an aspect stay within a word.
    shift = max(placed.peak.bit_length() - 40, 0)
    in_time = np.maximum(np.maximum(birth - moment, moment + 1 - death), 0)
    in_bytes = np.maximum(offset[item] - placed.end, 0) >> shift
    distance = np.maximum(
        in_time * (DISTANCE * aspect) // (4 * int(death.max())), in_bytes * DISTANCE // max(placed.peak >> shift, 1)
    )
    distance[item] = -1
    return np.argsort(distance, kind="stable")[:count]


def _pack_window(placed: PlacedItems, window: Index, cap: int, nodes: int, budget: WindowBudget) -> PlacedItems:
    """The same, with the window packed below the cap if the search finds how."""
    birth, death = placed.birth, placed.death
    is_fixed = np.zeros(len(birth), dtype=bool)
    for item in window.tolist():
        is_fixed |= (birth < death[item]) & (birth[item] < death)
    is_fixed[window] = False
    fixed = np.flatnonzero(is_fixed)
    rows = np.concatenate([window, fixed])
    budget.left -= SETUP_NODES * len(rows) + 2 * len(birth)
    if len(fixed) and int(placed.end[fixed].max()) > cap:
        return placed
    problem = PackProblem(
        size=tuple(placed.size[rows].tolist()),
        birth=tuple(np.maximum(birth[rows], birth[window].min()).tolist()),
        death=tuple(np.minimum(death[rows], death[window].max()).tolist()),
        alignment=(placed.problem.alignment[0],) * len(rows),
        fixed=(-1,) * len(window) + tuple(placed.offset[fixed].tolist()),
    )
    verdict = exact.find(problem, cap, search_nodes=nodes)
    budget.left -= verdict.nodes_visited * len(rows)
    if verdict.status != "placed":
        return placed
    offset = placed.offset.copy()
    offset[window] = verdict.offset[: len(window)]
    return _moved(placed, offset)
