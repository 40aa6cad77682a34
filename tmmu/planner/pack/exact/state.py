"""Columns of the search: flat integer arrays in named tuples (numpy when compiled, else lists).

Compiled code addresses the fields by position and numba's cache is keyed by ``kernel.py`` alone: a change of the fields
needs a change of ``kernel.py`` too, or stale compiled code may be loaded.
"""

from collections.abc import MutableSequence
from typing import NamedTuple, TypeAlias

Cells: TypeAlias = MutableSequence[int]
"""int64[n], written in place."""


class SearchItems(NamedTuple):
    """Constants per item; ``neighbors[neighbor_start[i]:neighbor_start[i + 1]]`` share a section with item ``i``.

    Of these the fixed ones come first, by offset. ``last``: highest offset below the capacity; ``fixed``: fixed offset,
    -1 (none), or -2 (none, but a neighbour has one); ``twin``: the equal item next below in ``rank``, or -1; ``peer``:
    the next in a ring of items of one span.
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
    """Per item: offset (-1: open), highest end placed below it, lower bound of its offset.

    ``neighbor_end`` and ``neighbor_low``: the lowest end and the lowest offset that an open neighbour can have.
    """

    offset: Cells
    support: Cells
    low: Cells
    neighbor_end: Cells
    neighbor_low: Cells


class SectionBounds(NamedTuple):
    """Per section, over its open items: units, the two lowest offsets and ends, and the items of the lowest.

    ``first_end``: lowest end among items that may be the lowest; ``crossing``: items that span into the next section.
    """

    load: Cells
    floor: Cells
    floor2: Cells
    floor_of: Cells
    top: Cells
    top2: Cells
    top_of: Cells
    first_end: Cells
    crossing: Cells


class SearchStack(NamedTuple):
    """Position of the search, its frames (choices with an open second side), and the trail to undo them.

    A frame has an item and its offset on the second side (``lift``), the sections ``first`` to ``end`` of its part, the
    choice before it in that part (``parent``), and where its entries begin in the trail ``saved`` (``saved_start``).
    ``part_*``: a linked list of pending parts.
    """

    item: Cells
    lift: Cells
    first: Cells
    end: Cells
    parent: Cells
    pending: Cells
    parts: Cells
    saved_start: Cells
    part_first: Cells
    part_end: Cells
    part_parent: Cells
    part_next: Cells
    saved: Cells
    active: Cells
    cursor: Cells
