"""Logical slots: linear-scan assignment on an interval graph, lowest free slot first.

State: a heap ``free`` of slot numbers below ``len(widest)`` that no live item has, and a heap ``ends`` of
(death, slot) of the items that are live. Invariant: each slot is in exactly one of the two heaps. Items are visited
once, in birth order; a new slot is opened only when all are taken, so that their number is the most items live at
once: the interval graph's clique number, hence minimal (the left-edge algorithm, Hashimoto and Stevens 1971).
O(N log N).
"""

import heapq
from dataclasses import dataclass
from itertools import accumulate

from tmmu.errors import InternalError
from tmmu.ir.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotAssignment:
    """``slot`` per item; ``bytes`` per slot: the size of its largest item."""

    slot: tuple[int, ...]
    bytes: tuple[int, ...]


def assign_logical_slots(problem: Problem) -> SlotAssignment:
    """A slot per item of one arena, none shared by two live items: ``UML_OS.TMMU.AssignLogicalSlots_v1``.

    By birth, then larger first, then id, each item gets the lowest free slot. ``InternalError`` unless the number of
    slots is the most items live at once.
    """
    birth, death, size = problem.birth, problem.death, problem.size
    slot = [0] * len(problem)
    widest: list[int] = []
    ends: list[tuple[int, int]] = []
    free: list[int] = []
    for item in sorted(range(len(problem)), key=lambda i: (birth[i], -size[i], i)):  # mutation: slot order
        while ends and ends[0][0] <= birth[item]:  # mutation: slot release
            heapq.heappush(free, heapq.heappop(ends)[1])
        if free:
            chosen = heapq.heappop(free)  # mutation: slot choice
            widest[chosen] = max(widest[chosen], size[item])
        else:
            chosen = len(widest)
            widest.append(size[item])
        slot[item] = chosen
        heapq.heappush(ends, (death[item], chosen))
    if len(widest) != max_live(problem):
        raise InternalError(f"{len(widest)} slots for {max_live(problem)} items live at once")
    return SlotAssignment(slot=tuple(slot), bytes=tuple(widest))


def one_slot_each(problem: Problem) -> SlotAssignment:
    """A slot per item, in id order, for arenas that never reuse bytes."""
    return SlotAssignment(slot=tuple(range(len(problem))), bytes=problem.size)


def max_live(problem: Problem) -> int:
    """The most items live at once."""
    return _peak_load(problem, (1,) * len(problem))


def max_live_bytes(problem: Problem) -> int:
    """The most bytes live at once, a lower bound of every layout."""
    return _peak_load(problem, problem.size)


def _peak_load(problem: Problem, weight: tuple[int, ...]) -> int:
    change = [0] * (max(problem.death, default=0) + 1)
    for item, size in enumerate(weight):
        change[problem.birth[item]] += size
        change[problem.death[item]] -= size
    return max(accumulate(change))
