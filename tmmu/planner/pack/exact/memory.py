"""Arrays of a search: ``SearchItems`` and the stack are made once per instance, ``SearchState`` once per search.

Invariant: a search leaves ``SearchItems`` unchanged, and ``set_capacity`` rewrites all that depends on capacity and
rank. The trail holds at most (n + 1)(n + 2) / 2 entries: each frame has placed one item more than the one before.
"""

from itertools import accumulate
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tmmu.planner.pack.exact.instance import SearchInstance
from tmmu.planner.pack.exact.jit import make_cells, zero_cells
from tmmu.planner.pack.exact.kernel import CURSOR_CELLS, MAX_OFFSET
from tmmu.planner.pack.exact.state import SearchItems, SearchStack, SearchState, SectionBounds

Index: TypeAlias = npt.NDArray[np.int64]


def make_items(instance: SearchInstance) -> SearchItems:
    """Constant columns of ``instance``; ``last``, ``rank`` and ``twin`` are filled by ``set_capacity``."""
    count = len(instance)
    neighbors_of = neighbors(instance)
    neighbor_start = list(accumulate((len(items) for items in neighbors_of), initial=0))
    return SearchItems(
        size=make_cells(instance.units),
        last=zero_cells(count),
        align=make_cells(instance.align),
        fixed=make_cells(mark_near_fixed(instance, neighbors_of)),
        first_section=make_cells(instance.first_section),
        end_section=make_cells(instance.end_section),
        neighbor_start=make_cells(neighbor_start),
        neighbors=make_cells(np.concatenate(neighbors_of)),
        peer=make_cells(peers(instance)),
        twin=make_cells([-1] * count),
        rank=zero_cells(count),
    )


def set_capacity(items: SearchItems, instance: SearchInstance, capacity: int, rank: list[int]) -> None:
    """Fill the columns that depend on ``capacity`` (bytes) and ``rank``, for the next search."""
    twin = twins(instance, rank)
    for item in range(len(instance)):
        items.last[item] = (capacity - instance.bytes[item]) // instance.unit
        items.rank[item] = rank[item]
        items.twin[item] = twin[item]


def mark_near_fixed(instance: SearchInstance, neighbors_of: list[Index]) -> list[int]:
    """Per item its fixed offset; else -2 if a neighbour has one, -1 if none has."""
    fixed = np.array(instance.fixed, dtype=np.int64)
    has_fixed_neighbor = [bool((fixed[items] >= 0).any()) for items in neighbors_of]
    return [-2 if has_fixed_neighbor[item] and offset < 0 else offset for item, offset in enumerate(instance.fixed)]


def neighbors(instance: SearchInstance) -> list[Index]:
    """Per item the others that share a section with it: the fixed ones first, the lowest of them first."""
    fixed = np.array(instance.fixed, dtype=np.int64)
    place = np.argsort(np.where(fixed < 0, MAX_OFFSET, fixed), kind="stable")
    first_section, end_section = np.array(instance.first_section), np.array(instance.end_section)
    neighbors_of = []
    for item in range(len(instance)):
        together = (first_section < end_section[item]) & (first_section[item] < end_section)
        together[item] = False
        neighbors_of.append(place[together[place]])
    return neighbors_of


def twins(instance: SearchInstance, rank: list[int]) -> list[int]:
    """Per item the last equal one of lower rank, or -1: of equal items only one order is searched."""
    before: dict[tuple[int, int, int, int], int] = {}
    twin = [-1] * len(instance)
    for item in sorted(range(len(instance)), key=rank.__getitem__):
        if instance.fixed[item] < 0:
            key = (instance.first_section[item], instance.end_section[item], instance.bytes[item], instance.align[item])
            twin[item] = before.get(key, -1)
            before[key] = item
    return twin


def peers(instance: SearchInstance) -> list[int]:
    """Per item the next in a ring of unaligned, unfixed items of its sections: two that touch may change places."""
    first: dict[tuple[int, int], int] = {}
    peer = list(range(len(instance)))
    for item in peer[:]:
        exact = instance.units[item] * instance.unit == instance.bytes[item]
        if exact and instance.align[item] == 1 and instance.fixed[item] < 0:
            head = first.setdefault((instance.first_section[item], instance.end_section[item]), item)
            peer[item], peer[head] = peer[head], item
    return peer


def make_state(instance: SearchInstance) -> SearchState:
    """Nothing is placed; each bound is the fixed offset, or 0."""
    count = len(instance)
    return SearchState(
        offset=make_cells([-1] * count),
        support=zero_cells(count),
        low=make_cells([max(fixed, 0) for fixed in instance.fixed]),
        neighbor_end=zero_cells(count),
        neighbor_low=zero_cells(count),
    )


def make_sections(instance: SearchInstance) -> SectionBounds:
    """Empty cells for ``summarize_sections``."""
    return SectionBounds(*(zero_cells(instance.sections + 2) for _ in SectionBounds._fields))


def make_stack(instance: SearchInstance) -> SearchStack:
    """Cells for every frame that can be open at once: at most one per item."""
    count = len(instance)
    frames, parts, saved = count + 2, 4 * count + 8, 3 * (count + 1) * (count + 2) // 2
    sizes = {"saved": saved, "active": count + 1, "cursor": CURSOR_CELLS}
    per_field = [sizes.get(name, parts if name.startswith("part_") else frames) for name in SearchStack._fields]
    return SearchStack(*(zero_cells(size) for size in per_field))
