"""Where a plan's arenas lie in the segments, and so where every buffer and value does."""

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace

import torch

from tmmu.ir.graph import INPUT, Graph
from tmmu.ir.plan import Plan, slabs_of
from tmmu.runtime.memory.slab import Slab
from tmmu.runtime.memory.usage import round_up


@dataclass(frozen=True, slots=True, kw_only=True)
class Extents:
    """Bytes that a plan takes of each segment, and the start of each arena, by index, in what it takes."""

    bytes: Mapping[str, int]
    start: tuple[int, ...]


def extents(plan: Plan) -> Extents:
    """The slabs of each segment one after another, each aligned as its strictest arena asks."""
    arenas = plan.arenas
    taken = {"text": 0, "data": 0, "stack": 0}
    start = [0] * len(arenas)
    for slab in slabs_of(arenas.segment, arenas.layout):
        segment = arenas.segment[slab[0]]
        base = round_up(taken[segment], max(arenas.alignment[arena] for arena in slab))
        for arena in slab:
            start[arena] = base
        taken[segment] = base + max(arenas.peak[arena] for arena in slab)
    return Extents(bytes=taken, start=tuple(start))


def taken_bytes(plan: Plan) -> int:
    """What a plan takes of a device: its segments, or where it has a ring, that for the text."""
    whole = extents(plan)
    if plan.ring is None:
        return sum(whole.bytes.values())
    return sum(without_text(whole).bytes.values()) + plan.ring.bytes


def without_text(whole: Extents) -> Extents:
    """The same where weights lie elsewhere."""
    return replace(whole, bytes={**whole.bytes, "text": 0})


class Places:
    """The tensor of each value, made once."""

    def __init__(self, graph: Graph, homes: Mapping[int, tuple[Slab, int]]) -> None:
        self.graph = graph
        self.homes = homes
        self._views: dict[int, torch.Tensor] = {}

    def view(self, value: int) -> torch.Tensor:
        """The window of a value on its buffer, where the plan puts it."""
        found = self._views.get(value)
        if found is None:
            slab, offset = self.homes[self.graph.values.buffer[value]]
            found = self._views[value] = self.window(value, slab, offset)
        return found

    def window(self, value: int, slab: Slab, offset: int = 0) -> torch.Tensor:
        """The window of a value, were its buffer at this offset of another slab."""
        values = self.graph.values
        dtype = getattr(torch, values.dtype[value])
        return slab.view(offset + values.offset[value], values.shape[value], values.stride[value], dtype)

    def start(self, value: int) -> int:
        """Where the buffer of a value begins in its storage, in elements of the value."""
        slab, offset = self.homes[self.graph.values.buffer[value]]
        return (slab.base + offset) // int(getattr(torch, self.graph.values.dtype[value]).itemsize)

    def bytes(self, buffer: int) -> torch.Tensor:
        """The whole buffer as ``uint8``."""
        slab, offset = self.homes[buffer]
        return slab.bytes(offset, self.graph.buffers.bytes[buffer])


def staging(
    graph: Graph, alignment: int, device: torch.device, *, external: Container[int] = ()
) -> dict[int, tuple[Slab, int]]:
    """A place for each input, outside the plan: inputs are the caller's, and are copied in when a step begins.

    Buffers that are ``external`` need none.
    """
    at: dict[int, int] = {}
    end = 0
    for buffer, role in enumerate(graph.buffers.role):
        if role == INPUT and buffer not in external:
            at[buffer] = end
            end = round_up(end + graph.buffers.bytes[buffer], alignment)
    slab = Slab(end, alignment, device)
    return {buffer: (slab, offset) for buffer, offset in at.items()}
