"""The cells that the search works on: flat, named, filled before it starts (numpy's when compiled, else lists).

Compiled code knows the fields by their place: whoever moves one touches ``kernel.py`` too, or old code may be kept.
"""

from collections.abc import MutableSequence
from typing import NamedTuple, TypeAlias

Cells: TypeAlias = MutableSequence[int]
"""A flat row of integers that is written in place."""


class SearchItems(NamedTuple):
    """What a search does not change, per item; ``near[start[i]:start[i + 1]]`` live together with item ``i``.

    ``last`` is the highest offset below the capacity; ``fixed`` the given offset, -1, or -2: none, but a neighbour has
    one. ``lo`` and ``hi`` are sections. ``twin`` is the item that lies below because it is equal and comes first in
    ``rank``, or -1; ``peer`` the next in a ring of items of one span.
    """

    size: Cells
    last: Cells
    align: Cells
    fixed: Cells
    first_section: Cells
    end_section: Cells
    neighbor_start: Cells
    neighbors: Cells
    peer: Cells
    twin: Cells
    rank: Cells


class SearchState(NamedTuple):
    """What a search finds out, per item: offset (-1: none yet), the end of what lies below, the least offset.

    ``end_near`` and ``low_near`` are the lowest end and the lowest offset that a neighbour yet to place can have.
    """

    offset: Cells
    support: Cells
    low: Cells
    neighbor_end: Cells
    neighbor_low: Cells


class SectionBounds(NamedTuple):
    """Per section, of what is yet to place: all units, the two lowest offsets and ends, and whose the lowest are.

    ``first_end`` is the lowest end of an item that may be the lowest one; ``cross`` counts items that go on.
    """

    load: Cells
    floor: Cells
    floor2: Cells
    floor_of: Cells
    top: Cells
    top2: Cells
    top_of: Cells
    first_end: Cells
    cross: Cells


class SearchStack(NamedTuple):
    """Where the search is, its choices that have another side, and what the items were before each, to go back to.

    Frames have an item and where it goes if not on its support; ``first`` and ``end`` are the sections of its part,
    ``parent`` is the choice before it in that part, ``mark`` where its items begin in ``saved``. Cells are a linked
    list of parts that were put off.
    """

    item: Cells
    lift: Cells
    first: Cells
    end: Cells
    parent: Cells
    pending: Cells
    cells: Cells
    saved_start: Cells
    cell_first: Cells
    cell_end: Cells
    cell_parent: Cells
    cell_next: Cells
    saved: Cells
    active: Cells
    cursor: Cells
