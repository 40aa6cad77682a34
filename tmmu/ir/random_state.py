"""Ops that take or set the random state: no buffer ties them to those that draw, so they stay where they are."""

from collections.abc import Iterator, Sequence
from typing import Final

from tmmu.ir.graph import Graph

RANDOM_STATE_OPS: Final = ("tmmu.random_state.default", "tmmu.set_random_state.default")


def displaced(graph: Graph, order: Sequence[int]) -> Iterator[int]:
    """Those ops that do not stand between all smaller ids of the order and all larger ones."""
    fixed = {op for op, target in enumerate(graph.ops.target) if target in RANDOM_STATE_OPS}
    if not fixed:
        return
    largest, smallest = [-1], [len(graph.ops)]
    for op in order:
        largest.append(max(largest[-1], op))
    for op in reversed(order):
        smallest.append(min(smallest[-1], op))
    smallest.reverse()
    for at, op in enumerate(order):
        if op in fixed and not largest[at] < op < smallest[at + 1]:
            yield op
