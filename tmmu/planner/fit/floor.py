"""What no order and no recomputation undercuts: bytes that must be live while some op runs for the first time.

At its first run an op has its operands and results, less the results that may take over an operand; and whatever was
made before it in every order, cannot be made again, and is read after it in every order. Outputs count as read at the
end.
Ancestors are sets of bits: O(ops x edges / 64), for graphs of at most ``MOST_OPS``; of larger ones only the op's own
bytes count, which is a bound too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tmmu.planner.fit.step_table import StepTable
from tmmu.planner.order import dependence_edges

MOST_OPS: Final = 12_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """Bytes of the stack, and the op (of the table's graph) that holds them."""

    bytes: int
    op: int


def stack_floor(table: StepTable) -> Floor:
    """The bound; 0 bytes at op 0 of a step that makes nothing."""
    own = _own_bytes(table)
    across = _bytes_across(table) if len(own) <= MOST_OPS else [0] * len(own)
    totals = [a + b for a, b in zip(own, across, strict=True)]
    best = max(totals, default=0)
    return Floor(bytes=best, op=totals.index(best) if totals else 0)


def _cells(starts: Sequence[int], joined: Sequence[int], row: int) -> list[int]:
    return [int(cell) for cell in joined[starts[row] : starts[row + 1]]]


def _own_bytes(table: StepTable) -> list[int]:
    """Per op, what it reads and writes, less the results that may take over an operand."""
    cells = table.cells
    found = []
    for row in range(len(cells.touch_at) - 1):
        touched = sum(int(cells.size[b]) for b in _cells(cells.touch_at, cells.touch_of, row))
        shared = [int(cells.size[b]) for b in _cells(cells.over_at, cells.over_new, row)]
        found.append(touched - sum(dict(zip(_cells(cells.over_at, cells.over_new, row), shared, strict=True)).values()))
    return found


def _bytes_across(table: StepTable) -> list[int]:
    """Per op, what cannot be made again, is made by its ancestors, read by its descendants, and not its own."""
    cells, rows = table.cells, len(table.cells.touch_at) - 1
    after = dependence_edges(table.graph, table.graph.ops.ids)
    ancestors, descendants = [0] * rows, [0] * rows
    for row in range(rows):
        for later in after[row]:
            ancestors[later] |= ancestors[row] | 1 << row
    for row in reversed(range(rows)):
        for later in after[row]:
            descendants[row] |= descendants[later] | 1 << later
    outputs, everything = set(map(int, cells.outputs)), (1 << rows) - 1
    found = np.zeros(rows, dtype=np.int64)
    for buffer in range(len(cells.size)):
        if cells.group_of[buffer] >= 0:
            continue
        users = [int(cells.touch_row[gap]) for gap in _cells(cells.use_at, cells.use_of, buffer)]
        if not users:
            continue
        before_end = everything if buffer in outputs else 0
        for user in users:
            before_end |= ancestors[user]
        across = descendants[users[0]] & before_end
        for user in users:
            across &= ~(1 << user)
        bits = np.frombuffer(across.to_bytes(-(-rows // 8), "little"), dtype=np.uint8)
        found[np.unpackbits(bits, count=rows, bitorder="little").astype(bool)] += int(cells.size[buffer])
    return [int(size) for size in found]
