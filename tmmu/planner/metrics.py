"""Metrics of a plan: whole numbers, ratios in parts per million."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from tmmu.ir.graph import Graph
from tmmu.ir.plan import Arenas, Placements, segment_bytes
from tmmu.planner.joint import PlacedSlab

PPM: Final = 1_000_000


def compute_metrics(
    graph: Graph, order: Sequence[int], arenas: Arenas, buffers: Placements, max_live: int
) -> dict[str, int]:
    """Metrics by name, without the stack's. ``max_live``: most items live at once, summed over arenas."""
    slots = sum(arenas.slots)
    count = len(buffers)
    padded = sum(buffers.bytes)
    exact = sum(graph.buffers.bytes[buffer] for buffer in buffers.id)
    peaks = {f"peak_bytes.{name}": peak for name, peak in zip(arenas.name, arenas.peak, strict=True)}
    return {
        "peak_logical_slots": slots,
        "max_live": max_live,
        "memory_reuse_ppm": (count - slots) * PPM // max(count, 1),
        "activation_retention_ppm": _retention(graph, order, arenas, buffers),
        "internal_fragmentation_ppm": (padded - exact) * PPM // max(padded, 1),
        **peaks,
    }


def arena_reuse(arenas: Arenas, buffers: Placements) -> tuple[int, ...]:
    """Per arena 1 - slots / buffers, in parts per million; 0 for an arena without buffers.

    The metric ``memory_reuse_ppm`` is of all arenas together, and counts weights, which never share a slot.
    """
    counts = Counter(buffers.arena)
    return tuple((counts[arena] - slots) * PPM // max(counts[arena], 1) for arena, slots in enumerate(arenas.slots))


def stack_metrics(arenas: Arenas, slabs: Sequence[PlacedSlab]) -> dict[str, int]:
    """Bytes of the stack segment and their lower bound, over all slabs."""
    bound = sum(slab.bound for slab in slabs if arenas.segment[slab.arenas[0]] == "stack")
    return {"peak_bytes.stack": segment_bytes(arenas, "stack"), "bound_bytes.stack": bound}


def _retention(graph: Graph, order: Sequence[int], arenas: Arenas, buffers: Placements) -> int:
    """Of the activation bytes that forward ops produce, the parts per million still live after the last of them."""
    end = sum(graph.ops.stage[op] == "forward" for op in order)
    activations = arenas.name.index("activations")
    produced = retained = 0
    for row in range(len(buffers)):
        if buffers.arena[row] == activations and buffers.birth[row] < end:
            produced += buffers.bytes[row]
            retained += buffers.bytes[row] if buffers.death[row] >= end else 0
    return retained * PPM // max(produced, 1)
