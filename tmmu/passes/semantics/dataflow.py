"""Dataflow over ops: who wrote a value, who reads it, and which argument an op is mainly about.

Views are no ops of a graph, so a chain of producers is a chain of computations. Built in one walk, linear in the
reads and writes of the graph.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tmmu.ir.graph import CONSTANT, PARAMETER, STATE, Graph
from tmmu.ir.windows import writers

ROOT = -1
"""The producer of what is there from the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataflow:
    """Per value, the op that writes it (``ROOT``: none), the ops that read it in order, and how many elements it has.

    ``order`` are the ops that are looked at, each after what it needs.
    """

    graph: Graph
    order: Sequence[int]
    writer: Sequence[int]
    readers: Sequence[Sequence[int]]
    elements: Sequence[int]

    def role(self, value: int) -> str:
        """The role of the value's buffer."""
        return self.graph.buffers.role[self.graph.values.buffer[value]]

    def is_weight(self, value: int) -> bool:
        """Whether nothing computes the value: a parameter, a constant, or weights that a step updates."""
        return self.writer[value] == ROOT and self.role(value) in {PARAMETER, CONSTANT, STATE}

    def operands(self, op: int) -> Sequence[int]:
        """What the op reads, without the old content of a state that it changes in part."""
        graph = self.graph
        changed = {graph.values.buffer[value] for value in graph.ops.writes[op]}
        return [
            value
            for value in graph.ops.reads[op]
            if graph.values.buffer[value] not in changed or self.role(value) != STATE
        ]

    def main_operand(self, op: int) -> int:
        """The argument that the op is about: the largest that was computed, else the largest; -1 without any."""
        best, best_rank = -1, (False, -1)
        for value in self.operands(op):
            rank = (self.writer[value] != ROOT, self.elements[value])
            if rank > best_rank:
                best, best_rank = value, rank
        return best

    def result(self, op: int) -> int:
        """The first value that the op writes; -1 without any."""
        return self.graph.ops.writes[op][0] if self.graph.ops.writes[op] else -1

    def consumers(self, op: int) -> Iterator[int]:
        """The ops that read what the op writes, with repetitions."""
        for value in self.graph.ops.writes[op]:
            yield from self.readers[value]


def dataflow_of(graph: Graph, order: Sequence[int] | None = None) -> Dataflow:
    """The dataflow of the ops of ``order``; of all ops, as they stand, for ``None``."""
    steps = range(len(graph.ops)) if order is None else order
    readers: list[list[int]] = [[] for _ in range(len(graph.values))]
    for op in steps:
        for value in graph.ops.reads[op]:
            readers[value].append(op)
    counts: dict[tuple[int, ...], int] = {shape: _product(shape) for shape in set(graph.values.shape)}
    return Dataflow(
        graph=graph,
        order=steps,
        writer=writers(graph),
        readers=readers,
        elements=[counts[shape] for shape in graph.values.shape],
    )


def _product(shape: Sequence[int]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total
