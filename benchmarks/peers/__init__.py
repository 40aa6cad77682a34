"""Published packing heuristics, implemented from their descriptions, for ``benchmarks/pack.py``.

Each is a pure function from an instance to offsets. All share the instance's index of overlapping items: their peaks
are those of the originals, their seconds are not.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from benchmarks.peers.executorch import greedy_objects
from benchmarks.peers.inductor import allocation_tree
from benchmarks.peers.program_order import first_fit_in_program_order
from benchmarks.peers.size_best_fit import tflite, xla_spatial, xla_temporal
from benchmarks.peers.tvm import greedy_by_conflicts, greedy_by_size, hill_climb
from tmmu.planner.pack.instance import Column, PackingInstance


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A published heuristic; ``max_items``: problem size up to which it takes less than a minute."""

    name: str
    place: Callable[[PackingInstance], Column]
    max_items: int = 1 << 62


PEERS: Final = (
    Peer(name="tflite", place=tflite),
    Peer(name="xla-spatial", place=xla_spatial),
    Peer(name="xla-temporal", place=xla_temporal),
    Peer(name="tvm-size", place=greedy_by_size),
    Peer(name="tvm-conflicts", place=greedy_by_conflicts),
    Peer(name="tvm-climb", place=hill_climb, max_items=3_000),
    Peer(name="program-order", place=first_fit_in_program_order),
    Peer(name="executorch", place=greedy_objects),
    Peer(name="inductor", place=allocation_tree, max_items=10_000),
)
