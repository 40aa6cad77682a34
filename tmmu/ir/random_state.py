"""Ops that take or set the random state: no buffer ties them to the ops that draw, so they keep their position.

Such an op is a barrier. It runs after every smaller id of the order and before every larger one; two pure draws may
still change places, as long as no barrier lies between them.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from tmmu.ir.graph import Graph

RANDOM_STATE_OPS: Final = ("tmmu.random_state.default", "tmmu.set_random_state.default")


def displaced_ops(graph: Graph, order: Sequence[int]) -> Iterator[int]:
    """Ops of ``RANDOM_STATE_OPS`` that run before a smaller id of the order or after a larger one. O(order)."""
    if not any(graph.ops.target[op] in RANDOM_STATE_OPS for op in order):
        return
    largest_before = accumulate(order, max, initial=-1)
    smallest_after = [*accumulate(reversed(order), min, initial=len(graph.ops))][-2::-1]
    for op, low, high in zip(order, largest_before, smallest_after, strict=False):
        if graph.ops.target[op] in RANDOM_STATE_OPS and not low < op < high:
            yield op
