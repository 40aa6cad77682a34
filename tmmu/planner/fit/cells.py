"""Columns of a step for the search of what to run again: flat integer cells in named tuples (numpy when compiled).

Compiled code addresses the fields by position and numba's cache is keyed by ``kernel.py`` alone: a change of the fields
needs a change of ``kernel.py`` too, or stale compiled code may be loaded.
"""

from collections.abc import MutableSequence
from typing import NamedTuple, TypeAlias

Cells: TypeAlias = MutableSequence[int]
"""int64[n], written in place."""


class StepCells(NamedTuple):
    """The rows (ops) of a step in the order in which they run, and the buffers that are there during the step only.

    After the rows of the step come those of ops that read and write other buffers when they run again; they are in
    groups alone, and have no ``touch`` and no ``kept_write``.

    ``X_at`` and ``X_of``: those of row r are ``X_of[X_at[r]:X_at[r + 1]]``. ``touch``: the buffers that a row reads or
    writes; a position in ``touch_of`` is a *gap*: what lies between that use of a buffer and its next one, ``next_use``
    (the number of rows where there is none: a last use). ``use``: the gaps of a buffer. ``group``: the rows that make a
    buffer run again together; -1 where they do not. ``kept_read``: persistent buffers that a row reads when it runs
    again, with the version that it has to find there; ``kept_write``: those that it changes. ``over``: buffers that may
    take over the bytes of another. ``outputs``: buffers that are needed after the last row.
    """

    size: Cells
    kind: Cells
    read_at: Cells
    read_of: Cells
    write_at: Cells
    write_of: Cells
    touch_at: Cells
    touch_of: Cells
    touch_row: Cells
    next_use: Cells
    use_at: Cells
    use_of: Cells
    group_of: Cells
    group_at: Cells
    group_rows: Cells
    kept_read_at: Cells
    kept_read_of: Cells
    kept_version: Cells
    kept_write_at: Cells
    kept_write_of: Cells
    over_at: Cells
    over_new: Cells
    over_old: Cells
    outputs: Cells
    row_time: Cells
    row_flops: Cells


class ScheduleCells(NamedTuple):
    """One schedule: ``row`` and ``again`` of each position, and the *copies* of buffers with their spans.

    ``totals``: see ``kernel.py``. ``now``: per buffer its present copy, or -1. ``version``: per persistent buffer how
    often it was changed. ``profile``: bytes live at each position. ``took``: takeovers that may be: two copies and a
    position each. ``reruns``: per row, whether it runs again. ``stack``, ``waiting``, ``seen``: groups of a walk.
    """

    totals: Cells
    row: Cells
    again: Cells
    now: Cells
    version: Cells
    birth: Cells
    death: Cells
    copied: Cells
    made_again: Cells
    profile: Cells
    took: Cells
    taken: Cells
    stack: Cells
    waiting: Cells
    reruns: Cells
    seen: Cells
