"""Filling the arrays of a search: items once per instance, the rest once per search."""

from itertools import accumulate
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tmmu.planner.pack.exact.instance import Instance
from tmmu.planner.pack.exact.jit import blank, row
from tmmu.planner.pack.exact.state import Items, Sections, Stack, State

Index: TypeAlias = npt.NDArray[np.int64]


def items_of(instance: Instance) -> Items:
    """The constant cells of ``instance``; ``last``, ``rank`` and ``twin`` are filled per search."""
    count = len(instance)
    near = neighbors(instance)
    start = list(accumulate((len(found) for found in near), initial=0))
    return Items(
        size=row(instance.room),
        last=blank(count),
        align=row(instance.align),
        fixed=row(marked(instance, near)),
        lo=row(instance.lo),
        hi=row(instance.hi),
        start=row(start),
        near=row(np.concatenate(near).tolist()),
        peer=row(peers(instance)),
        twin=row([-1] * count),
        rank=blank(count),
    )


def aim(items: Items, instance: Instance, capacity: int, rank: list[int]) -> None:
    """Make the items those of a search below ``capacity`` bytes in the order of ``rank``."""
    twin = twins(instance, rank)
    for item in range(len(instance)):
        items.last[item] = (capacity - instance.byte[item]) // instance.unit
        items.rank[item] = rank[item]
        items.twin[item] = twin[item]


def marked(instance: Instance, near: list[Index]) -> list[int]:
    """Per item the given offset; else -2 where a neighbour has one, and -1 where none has."""
    fixed = np.array(instance.fixed, dtype=np.int64)
    held = [bool((fixed[found] >= 0).any()) for found in near]
    return [-2 if held[item] and offset < 0 else offset for item, offset in enumerate(instance.fixed)]


def neighbors(instance: Instance) -> list[Index]:
    """Per item the others that are live at some time when it is."""
    lo, hi = np.array(instance.lo, dtype=np.int64), np.array(instance.hi, dtype=np.int64)
    near = []
    for item in range(len(instance)):
        together = (lo < hi[item]) & (lo[item] < hi)
        together[item] = False
        near.append(np.flatnonzero(together))
    return near


def twins(instance: Instance, rank: list[int]) -> list[int]:
    """Per item the last one of lower rank that is equal to it, or -1: only one order of twins is searched."""
    before: dict[tuple[int, int, int, int], int] = {}
    twin = [-1] * len(instance)
    for item in sorted(range(len(instance)), key=rank.__getitem__):
        if instance.fixed[item] < 0:
            key = (instance.lo[item], instance.hi[item], instance.byte[item], instance.align[item])
            twin[item] = before.get(key, -1)
            before[key] = item
    return twin


def peers(instance: Instance) -> list[int]:
    """Per item the next in the ring of those that could change places with it wherever one lies on the other."""
    first: dict[tuple[int, int], int] = {}
    peer = list(range(len(instance)))
    for item in peer[:]:
        exact = instance.room[item] * instance.unit == instance.byte[item]
        if exact and instance.align[item] == 1 and instance.fixed[item] < 0:
            head = first.setdefault((instance.lo[item], instance.hi[item]), item)
            peer[item], peer[head] = peer[head], item
    return peer


def state_of(instance: Instance) -> State:
    """Nothing is placed, every bound is zero or the given offset."""
    count = len(instance)
    return State(
        offset=row([-1] * count),
        support=blank(count),
        low=row([max(fixed, 0) for fixed in instance.fixed]),
        end_near=blank(count),
        low_near=blank(count),
    )


def sections_of(instance: Instance) -> Sections:
    """Room for what a survey finds."""
    return Sections(*(blank(instance.sections + 2) for _ in Sections._fields))


def stack_of(instance: Instance) -> Stack:
    """Room for every frame that can be open at once: each has placed an item that those above it no longer hold."""
    count = len(instance)
    frame, cell, saved = count + 2, 4 * count + 8, 3 * (count + 1) * (count + 2) // 2
    sizes = {"saved": saved, "active": count + 1, "at": 8}
    per_field = [sizes.get(name, cell if name.startswith("cell_") else frame) for name in Stack._fields]
    return Stack(*(blank(size) for size in per_field))
