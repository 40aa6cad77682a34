"""The longest chain of ops, each of which reads what the one before wrote. Linear in ops and reads."""

from collections.abc import Sequence
from dataclasses import dataclass

from tmmu.passes.semantics.dataflow import ROOT, Dataflow


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """The chain of the greatest cost, in order, and that cost."""

    ops: tuple[int, ...]
    cost: int


def critical_path(flow: Dataflow, cost: Sequence[int]) -> CriticalPath:
    """The path by ``cost``, one number per op of the graph; among equal ones, the first in the order."""
    length: dict[int, int] = {}
    before: dict[int, int] = {}
    for op in flow.order:
        longest, previous = 0, ROOT
        for value in flow.graph.ops.reads[op]:
            writer = flow.writer[value]
            if length.get(writer, 0) > longest:
                longest, previous = length[writer], writer
        length[op], before[op] = longest + cost[op], previous
    last = max(flow.order, key=lambda op: length[op], default=ROOT)
    path: list[int] = []
    while last != ROOT:
        path.append(last)
        last = before[last]
    return CriticalPath(ops=tuple(reversed(path)), cost=max(length.values(), default=0))
