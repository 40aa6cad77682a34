"""What a forward pass leaves for the backward pass: the fewest bytes from which the rest comes at hardly any FLOPs.

As torch's partitioner finds it: each buffer of the forward pass is an edge as wide as its bytes, from what is made of
parameters and inputs alone to what the backward pass reads. A buffer that cannot be made again, or only by as many
operations as a product takes, is there; so that the smallest cut is what is kept, and all behind it runs again.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from tmmu.planner.fit.seeds.max_flow import UNBOUNDED, Edge, cut_side
from tmmu.planner.fit.seeds.seed import Seed
from tmmu.planner.fit.step_facts import Ints, StepFacts
from tmmu.planner.fit.step_table import StepTable

FEW_FLOPS: Final = 16
"""For each byte of its largest result: what takes more is not run again. A sum over 17 short floats does."""
SOURCE, SINK, FIRST = range(3)


def min_cut(table: StepTable) -> Seed | None:
    """The seed; ``None`` for a step without a backward pass, or where nothing runs again. O(flow)."""
    stages, ops = table.graph.ops.stage, table.op[: len(table.graph.ops)]
    boundary = max((row for row, op in enumerate(ops) if stages[op] == "forward"), default=-1)
    first, last = _first_and_last(table)
    inside = [int(cell) for cell in np.flatnonzero((first >= 0) & (first <= boundary))]
    edges = list(_edges(table, inside, last > boundary))
    # Seen from the sink, so that of cuts that are as small as each other the one is found that runs the least again.
    behind = cut_side(FIRST + 2 * len(first), [(head, tail, room) for tail, head, room in edges], SINK, SOURCE)
    again = np.zeros(len(first), dtype=bool)
    again[[cell for cell in inside if behind[FIRST + 2 * cell]]] = True
    saved = [cell for cell in inside if behind[FIRST + 2 * cell + 1] and not behind[FIRST + 2 * cell]]
    buffer, row = np.asarray(table.cells.touch_of), np.asarray(table.cells.touch_row)
    across = (row <= boundary) & (np.asarray(table.cells.next_use) > boundary)
    dropped = np.flatnonzero(table.droppable & ~table.last_use & across & again[buffer])
    if not len(dropped):
        return None
    return Seed(available=tuple(saved), dropped=tuple(table.gap[dropped].tolist()))


def _first_and_last(table: StepTable) -> tuple[Ints, Ints]:
    """Per cell its first and its last use, -1 where it has none; an output is used after the last row."""
    at, of, row = (np.asarray(column) for column in (table.cells.use_at, table.cells.use_of, table.cells.touch_row))
    is_used = at[1:] > at[:-1]
    first, last = np.full(len(is_used), -1, dtype=np.int64), np.full(len(is_used), -1, dtype=np.int64)
    first[is_used], last[is_used] = row[of[at[:-1][is_used]]], row[of[at[1:][is_used] - 1]]
    last[list(table.facts.outputs)] = len(table.graph.ops)
    return first, last


def _edges(table: StepTable, inside: list[int], is_needed: np.ndarray) -> Iterator[Edge]:
    """Of a cell, from what it is made of (an even node) to what is made of it (the odd one after it)."""
    facts, group_of = table.facts, table.cells.group_of
    among = set(inside)
    is_dear = _dear_groups(facts)
    for cell in inside:
        group, node = int(group_of[cell]), FIRST + 2 * cell
        yield node, node + 1, int(facts.size[cell])
        if is_needed[cell]:
            yield node + 1, SINK, UNBOUNDED
        if group < 0 or is_dear[group]:
            yield SOURCE, node, UNBOUNDED
        else:
            for read in _reads(facts, group):
                if read in among:
                    yield FIRST + 2 * read + 1, node, UNBOUNDED


def _rows(facts: StepFacts, group: int) -> list[int]:
    return [facts.twins.get(op, op) for op in facts.groups[group].ops]


def _reads(facts: StepFacts, group: int) -> dict[int, None]:
    """What a group reads and does not make."""
    makes = facts.groups[group].makes
    at, of = facts.read
    rows = _rows(facts, group)
    return dict.fromkeys(int(cell) for row in rows for cell in of[at[row] : at[row + 1]] if cell not in makes)


def _dear_groups(facts: StepFacts) -> list[bool]:
    """Of each group, whether one of its rows takes many FLOPs for what it writes."""
    at, of = facts.write
    largest = [max(facts.size[of[at[row] : at[row + 1]]], default=0) for row in range(len(at) - 1)]
    is_dear = facts.row_flops > FEW_FLOPS * np.array(largest, dtype=np.int64)
    return [any(is_dear[row] for row in _rows(facts, group)) for group in range(len(facts.groups))]
