"""The arrays that the search works on: flat, named, filled before it starts (numpy's when compiled, else lists)."""

from typing import Any, NamedTuple, TypeAlias

Cells: TypeAlias = Any
"""A flat row of integers that is written in place."""

FAR = 1 << 60
"""Above every offset: what an empty minimum is."""


class Items(NamedTuple):
    """What never changes, per item; ``near[start[i]:start[i + 1]]`` live together with item ``i``."""

    size: Cells
    last: Cells
    align: Cells
    fixed: Cells
    lo: Cells
    hi: Cells
    twin: Cells
    start: Cells
    near: Cells
    rank: Cells


class State(NamedTuple):
    """Per item: offset (-1: none yet), support (the end of what lies below), least offset; conflicts so far."""

    offset: Cells
    support: Cells
    low: Cells
    blame: Cells


class Sections(NamedTuple):
    """Per section: bytes to place, and with whom: the two lowest bounds, the two lowest ends; scratch for cuts."""

    rest: Cells
    floor: Cells
    floor2: Cells
    floor_of: Cells
    top: Cells
    top2: Cells
    top_of: Cells
    cross: Cells


class Stack(NamedTuple):
    """Choices that have another side: one frame each, and what the items were before, to go back to."""

    item: Cells
    lift: Cells
    first: Cells
    end: Cells
    parent: Cells
    pending: Cells
    cells: Cells
    mark: Cells
    cell_first: Cells
    cell_end: Cells
    cell_parent: Cells
    cell_next: Cells
    saved: Cells
    active: Cells
