"""Columns of the skyline search: flat integer cells in named tuples (numpy when compiled, else lists).

Compiled code addresses the fields by position and numba's cache is keyed by ``kernel.py`` alone: a change of the fields
needs a change of ``kernel.py`` too, or stale compiled code may be loaded.
"""

from collections.abc import MutableSequence
from typing import NamedTuple, TypeAlias

Cells: TypeAlias = MutableSequence[int]
"""int64[n], written in place."""


class SkylineItems(NamedTuple):
    """Constants per item and section, and the parameters of one beam.

    ``by_first`` lists items by first section, ``by_end`` by end section; those of section s begin at ``first_at[s]``
    and ``end_at[s]``. ``load``: units live per section; ``key``: the item's bits in the hash of a set of items.
    ``undo``: the ranges charged since the last snapshot, three cells each; ``moves``:
    those of one level.
    """

    size: Cells
    align: Cells
    first: Cells
    end: Cells
    by_first: Cells
    first_at: Cells
    by_end: Cells
    end_at: Cells
    load: Cells
    key: Cells
    parameter: Cells
    undo: Cells
    moves: Cells


class SkylineStates(NamedTuple):
    """Partial packings, one per slot; slot k owns the k-th run of cells of each column.

    ``offset``: per item, -1 while it is open; ``waste``: per section the units below the skyline that hold nothing;
    ``start`` and ``height``: the segments of the skyline, ``segments`` of them and the end of time. ``cost``: weighted
    waste above what the fullest section leaves free; ``area``: units x sections placed; ``hash``: of the set placed.
    """

    offset: Cells
    waste: Cells
    start: Cells
    height: Cells
    segments: Cells
    cost: Cells
    area: Cells
    hash: Cells
    placed: Cells
