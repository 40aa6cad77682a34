"""Heuristics where some offsets are given, or alignments differ: lowest fit around what already lies there."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from tmmu.ir.problem import PackProblem, Problem
from tmmu.planner.pack import orders
from tmmu.planner.pack.instance import WORD_LIMIT, Column, Index, Instance, prepare_instance
from tmmu.planner.pack.portfolio import BASE_WORK, MOST_WORK, WORK_PER_ITEM
from tmmu.planner.pack.search import MAX_TRIES, TRIES_PER_ITEM, WALKS, walk
from tmmu.planner.pack.sweep import sweep_best_fit
from tmmu.planner.pack.table import lowest_work

ORDERS: Final[tuple[tuple[str, Callable[[Instance], Index]], ...]] = (
    ("size", orders.by_size),
    ("pressure", orders.by_pressure),
    ("area", orders.by_area),
    ("duration", orders.by_duration),
    ("birth", orders.by_birth),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """An instance with each item's alignment, and its given offset or -1. ``wide``: Python integers, not words."""

    instance: Instance
    alignment: Column
    fixed: Column


def prepare_board(problem: PackProblem, bound: int) -> Board:
    """The board of items that all hold a byte; offsets fit its columns whatever a packer does."""
    plain = Problem(size=problem.size, birth=problem.birth, death=problem.death)
    instance = prepare_instance(plain, bound)
    ends = (given + size for given, size in zip(problem.fixed, problem.size, strict=True) if given >= 0)
    highest = max(ends, default=0) + sum(problem.size) + sum(problem.alignment)
    wide = 4 * highest >= WORD_LIMIT
    if wide:
        instance = replace(instance, size=instance.size.astype(object), far=4 * highest)
    kind = object if wide else np.int64
    return Board(
        instance=instance,
        alignment=np.array(problem.alignment, dtype=kind)[instance.item],
        fixed=np.array(problem.fixed, dtype=kind)[instance.item],
    )


def fit_around(instance: Instance, order: Index, *, board: Board) -> Column:
    """Offsets per item: given ones as they are, then ``order``, each at the lowest aligned offset that is free."""
    far, size = instance.far, instance.size
    given = board.fixed >= 0
    low = np.where(given, board.fixed, far)
    high = np.where(given, board.fixed + size, far)
    for index in order[~given[order].astype(bool)].tolist():
        near = instance.neighbors(index)
        offset = _lowest_aligned(low[near], high[near], size[index], board.alignment[index], far)
        low[index] = offset
        high[index] = offset + size[index]
    return low


def _lowest_aligned(low: Column, high: Column, size: Any, step: Any, far: int) -> Any:
    """The lowest multiple of ``step`` with ``size`` free bytes; see ``lowest_fit`` for how gaps are found."""
    starts = np.append(low, far)
    ends = np.append(high, 0)
    starts.sort()
    ends.sort()
    ends += (-ends) % step
    return ends[(starts - ends >= size).argmax()]


def sweep_above(problem: PackProblem, board: Board) -> Column:
    """Offsets per item, near-linear whatever the input: above all that is given, at the widest alignment."""
    free = board.instance.item[(board.fixed < 0).astype(bool)].tolist()
    given = board.fixed >= 0
    low = board.fixed.copy()
    if not free:
        return low
    step = max(problem.alignment[item] for item in free)
    padded = Problem(
        size=tuple(-(-problem.size[item] // step) * step for item in free),
        birth=tuple(problem.birth[item] for item in free),
        death=tuple(problem.death[item] for item in free),
    )
    base = int(np.where(given, board.fixed + board.instance.size, 0).max())
    found = sweep_best_fit(prepare_instance(padded, 0))
    low[~given.astype(bool)] = found + (base + -base % step)
    return low


def best_around(problem: PackProblem, board: Board) -> tuple[str, Column]:
    """The offsets of the lowest peak among orders and walks within the work limit, and which it was."""
    instance = board.instance
    left = min(BASE_WORK + WORK_PER_ITEM * len(instance), MOST_WORK)
    cost = lowest_work(instance)
    best = ("above", sweep_above(problem, board))
    for name, order in ORDERS:
        if _peak(instance, best[1]) > instance.bound and cost <= left:
            left -= cost
            best = min(
                best, (name, fit_around(instance, order(instance), board=board)), key=lambda b: _peak(instance, b[1])
            )
    for index, step in enumerate(WALKS):
        tries = min(left // (len(WALKS) - index) // cost, MAX_TRIES, TRIES_PER_ITEM * len(instance))
        if _peak(instance, best[1]) > instance.bound and tries:
            left -= tries * cost
            found = walk(instance, step, tries, fit=partial(fit_around, board=board))
            best = min(best, (step.name, found), key=lambda b: _peak(instance, b[1]))
    return best


def _peak(instance: Instance, offset: Column) -> int:
    return int((offset + instance.size).max())


def fit_rounds(problem: PackProblem, rounds: Sequence[Sequence[int]], placed: Mapping[int, int]) -> tuple[int, ...]:
    """Offsets of all items: ``placed`` where they are, then the rounds, last first, each item at its lowest gap."""
    fixed = tuple(placed.get(item, given) for item, given in enumerate(problem.fixed))
    board = prepare_board(replace(problem, fixed=fixed), 0)
    row = np.argsort(board.instance.item)
    order = row[np.array([item for items in reversed(rounds) for item in items], dtype=np.int64)]
    found = fit_around(board.instance, order, board=board)[row]
    return tuple(found.tolist())
