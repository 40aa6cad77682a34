"""What no order and no recomputation undercuts: bytes that must be live while some op runs for the first time.

At its first run an op has its operands and results, less the results that may take over an operand; and whatever was
made before it in every order, cannot be made again, and is read after it in every order. Outputs count as read at the
end.
Ancestors are sets of bits: O(ops x edges / 64), for graphs of at most ``MOST_OPS``; of larger ones only the op's own
bytes count, which is a bound too.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from tmmu.planner.fit.step_facts import Ragged, StepFacts

MOST_OPS: Final = 12_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """Bytes of the stack, and the op of the step's graph that holds them."""

    bytes: int
    op: int


def stack_floor(facts: StepFacts, *, takes_over: bool = True) -> Floor:
    """The bound; 0 bytes at op 0 of a step that makes nothing. ``takes_over``: results may take over operands."""
    own = _own_bytes(facts, takes_over=takes_over)
    across = _bytes_across(facts) if len(own) <= MOST_OPS else [0] * len(own)
    totals = [a + b for a, b in zip(own, across, strict=True)]
    best = max(totals, default=0)
    return Floor(bytes=best, op=totals.index(best) if totals else 0)


def _rows(columns: Ragged, rows: int) -> list[list[int]]:
    at, of = columns.at.tolist(), columns.of.tolist()
    return [of[at[row] : at[row + 1]] for row in range(rows)]


def _own_bytes(facts: StepFacts, *, takes_over: bool) -> list[int]:
    """Per op, what it reads and writes, less the results that may take over an operand."""
    size, ops = facts.size.tolist(), len(facts.graph.ops)
    touches, shares = _rows(facts.touch, ops), _rows(facts.over_new, ops) if takes_over else [[]] * ops
    return [
        sum(size[cell] for cell in touched) - sum(size[cell] for cell in set(shared))
        for touched, shared in zip(touches, shares, strict=True)
    ]


def _bytes_across(facts: StepFacts) -> list[int]:
    """Per op, what cannot be made again, is made by its ancestors, read by its descendants, and not its own."""
    ops = len(facts.graph.ops)
    ancestors, descendants = [0] * ops, [0] * ops
    for op in range(ops):
        for later in facts.after[op]:
            ancestors[later] |= ancestors[op] | 1 << op
    for op in reversed(range(ops)):
        for later in facts.after[op]:
            descendants[op] |= descendants[later] | 1 << later
    users = list[list[int]]([] for _ in facts.buffers)
    for op, touched in enumerate(_rows(facts.touch, ops)):
        for cell in touched:
            users[cell].append(op)
    made_again = {cell for group in facts.groups for cell in group.makes}
    found = np.zeros(ops, dtype=np.int64)
    for cell, size in enumerate(facts.size.tolist()):
        if cell in made_again or not users[cell]:
            continue
        before_end = (1 << ops) - 1 if cell in facts.outputs else 0
        for user in users[cell]:
            before_end |= ancestors[user]
        across = descendants[users[cell][0]] & before_end
        for user in users[cell]:
            across &= ~(1 << user)
        bits = np.frombuffer(across.to_bytes(-(-ops // 8), "little"), dtype=np.uint8)
        found[np.unpackbits(bits, count=ops, bitorder="little").astype(bool)] += size
    return [int(size) for size in found]
