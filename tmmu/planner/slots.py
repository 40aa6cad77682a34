"""Logical slots: as many as there are items live at once, lowest free slot first."""

import heapq
from dataclasses import dataclass
from itertools import accumulate

from tmmu.errors import InternalError
from tmmu.ir.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotAssignment:
    """``slot`` per item; ``bytes`` per slot: the largest item that it ever holds."""

    slot: tuple[int, ...]
    bytes: tuple[int, ...]


def assign_logical_slots(problem: Problem) -> SlotAssignment:
    """A slot per item of one arena, none shared by two live items: ``UML_OS.TMMU.AssignLogicalSlots_v1``.

    By birth, then larger first, then id, each item gets the lowest slot that is free. The number of slots is
    the most items live at once, the least possible (checked: ``InternalError``). O(N log N).
    """
    birth, death, size = problem.birth, problem.death, problem.size
    slot = [0] * len(problem)
    widest: list[int] = []
    ends: list[tuple[int, int]] = []
    free: list[int] = []
    for item in sorted(range(len(problem)), key=lambda i: (birth[i], -size[i], i)):
        while ends and ends[0][0] <= birth[item]:
            heapq.heappush(free, heapq.heappop(ends)[1])
        if free:
            chosen = heapq.heappop(free)
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
    """A slot per item, in id order: what an arena that never reuses gets."""
    return SlotAssignment(slot=tuple(range(len(problem))), bytes=problem.size)


def max_live(problem: Problem) -> int:
    """The most items live at once."""
    return _highest(problem, (1,) * len(problem))


def max_live_bytes(problem: Problem) -> int:
    """The most bytes live at once: no layout needs less."""
    return _highest(problem, problem.size)


def _highest(problem: Problem, weight: tuple[int, ...]) -> int:
    change = [0] * (max(problem.death, default=0) + 1)
    for item, size in enumerate(weight):
        change[problem.birth[item]] += size
        change[problem.death[item]] -= size
    return max(accumulate(change))
