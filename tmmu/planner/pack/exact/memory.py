"""Filling the arrays of a search: items once per instance, the rest once per search."""

import numpy as np

from tmmu.planner.pack.exact.instance import Instance
from tmmu.planner.pack.exact.jit import row
from tmmu.planner.pack.exact.state import Items, Sections, Stack, State


def items_of(instance: Instance) -> Items:
    """The constant arrays of ``instance``; ``last`` and ``rank`` are filled per search."""
    count = len(instance)
    near = neighbors(instance)
    start = [0]
    for found in near:
        start.append(start[-1] + len(found))
    held = [any(instance.fixed[other] >= 0 for other in found) for found in near]
    return Items(
        size=row(instance.room),
        last=row([0] * count),
        align=row(instance.align),
        fixed=row([-2 if held[item] and fixed < 0 else fixed for item, fixed in enumerate(instance.fixed)]),
        lo=row(instance.lo),
        hi=row(instance.hi),
        twin=row(twins(instance)),
        start=row(start),
        near=row([other for found in near for other in found]),
        rank=row([0] * count),
    )


def neighbors(instance: Instance) -> list[list[int]]:
    """Per item the others that are live at some time when it is."""
    lo, hi = np.array(instance.lo, dtype=np.int64), np.array(instance.hi, dtype=np.int64)
    near = []
    for item in range(len(instance)):
        together = (lo < hi[item]) & (lo[item] < hi)
        together[item] = False
        near.append(np.flatnonzero(together).tolist())
    return near


def twins(instance: Instance) -> list[int]:
    """Per item the one before it that it could change places with, or -1: only one order of twins is searched."""
    before: dict[tuple[int, int, int, int], int] = {}
    twin = []
    for item in range(len(instance)):
        key = (instance.lo[item], instance.hi[item], instance.byte[item], instance.align[item])
        free = instance.fixed[item] < 0
        twin.append(before.get(key, -1) if free else -1)
        if free:
            before[key] = item
    return twin


def state_of(instance: Instance) -> State:
    """Nothing is placed, every bound is zero or the given offset."""
    count = len(instance)
    return State(
        offset=row([-1] * count),
        support=row([0] * count),
        low=row([max(fixed, 0) for fixed in instance.fixed]),
        blame=row([0] * count),
    )


def sections_of(instance: Instance) -> Sections:
    """Room for what a survey finds."""
    return Sections(*(row([0] * (instance.sections + 2)) for _ in range(8)))


def stack_of(instance: Instance) -> Stack:
    """Room for every frame that can be open at once: each has placed an item that those above it no longer hold."""
    count = len(instance)
    frame, cell = count + 2, 4 * count + 8
    frames = [row([0] * frame) for _ in range(8)]
    cells = [row([0] * cell) for _ in range(4)]
    return Stack(*frames, *cells, row([0] * (3 * (count + 1) * (count + 2) // 2)), row([0] * (count + 1)))
