"""Where a plan's arenas lie in the segments, and the tensor of every value there."""

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from tmmu.ir.graph import HOST, INPUT, Graph
from tmmu.ir.plan import Plan, slabs_of
from tmmu.runtime.memory.sizing import require_free
from tmmu.runtime.memory.slab import Location, Slab
from tmmu.runtime.memory.usage import round_up

HOST_ALIGNMENT: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLayout:
    """Bytes that a plan takes of each segment, and the byte offset of each arena, by index, within that."""

    bytes: Mapping[str, int]
    arena_start: tuple[int, ...]


def segment_layout(plan: Plan) -> SegmentLayout:
    """The slabs of each segment one after another, each at its strictest arena's alignment. Joint arenas share one."""
    arenas = plan.arenas
    end = {"text": 0, "data": 0, "stack": 0}
    arena_start = [0] * len(arenas)
    for slab in slabs_of(arenas.segment, arenas.layout):
        segment = arenas.segment[slab[0]]
        base = round_up(end[segment], max(arenas.alignment[arena] for arena in slab))
        for arena in slab:
            arena_start[arena] = base
        end[segment] = base + max(arenas.peak[arena] for arena in slab)
    return SegmentLayout(bytes=end, arena_start=tuple(arena_start))


def device_bytes(plan: Plan) -> int:
    """Bytes that a plan takes of a device: its segments, with its ring, if it has one, in place of the text."""
    layout = segment_layout(plan)
    if plan.ring is None:
        return sum(layout.bytes.values())
    return sum(without_text(layout).bytes.values()) + plan.ring.bytes


def without_text(layout: SegmentLayout) -> SegmentLayout:
    """The layout of a plan whose weights lie outside the text segment."""
    return replace(layout, bytes={**layout.bytes, "text": 0})


class TensorViews:
    """The tensor of each value, made once: code is bound to the tensor object, so a value has only one.

    ``locations`` says where each buffer lies.
    """

    def __init__(self, graph: Graph, locations: Mapping[int, Location]) -> None:
        self.graph = graph
        self.locations = locations
        self._views: dict[int, torch.Tensor] = {}

    def view(self, value: int) -> torch.Tensor:
        """The tensor of a value, where the plan puts it."""
        tensor = self._views.get(value)
        if tensor is None:
            slab, offset = self.locations[self.graph.values.buffer[value]]
            tensor = self._views[value] = self.view_in(value, slab, offset)
        return tensor

    def view_in(self, value: int, slab: Slab, offset: int = 0) -> torch.Tensor:
        """A new tensor of a value, as if its buffer lay at this byte offset of ``slab``."""
        values = self.graph.values
        dtype = getattr(torch, values.dtype[value])
        return slab.view(offset + values.offset[value], values.shape[value], values.stride[value], dtype)

    def buffer_start(self, value: int) -> int:
        """Offset in its storage at which the buffer of a value begins, in elements of the value."""
        slab, offset = self.locations[self.graph.values.buffer[value]]
        return (slab.base + offset) // int(getattr(torch, self.graph.values.dtype[value]).itemsize)

    def bytes(self, buffer: int) -> torch.Tensor:
        """The whole buffer as ``uint8``."""
        slab, offset = self.locations[buffer]
        return slab.bytes(offset, self.graph.buffers.bytes[buffer])


def host_bytes(graph: Graph) -> int:
    """Bytes of host memory that a run takes beside its plan: each buffer of role ``host`` has its own."""
    return sum(_host_ends(graph).values())


def allocate_host(graph: Graph, device: torch.device) -> dict[int, Location]:
    """A location in host memory for each buffer of role ``host``, page-locked where ``device`` is a GPU."""
    ends = _host_ends(graph)
    if not ends:
        return {}
    host = torch.device("cpu")
    require_free(sum(ends.values()), host)
    slab, offset, locations = Slab(sum(ends.values()), HOST_ALIGNMENT, host, pinned=device.type == "cuda"), 0, {}
    for buffer, size in ends.items():
        locations[buffer] = (slab, offset)
        offset += size
    return locations


def _host_ends(graph: Graph) -> dict[int, int]:
    """By buffer of role ``host``, its bytes rounded up."""
    rows = enumerate(zip(graph.buffers.bytes, graph.buffers.role, strict=True))
    return {buffer: round_up(size, HOST_ALIGNMENT) for buffer, (size, role) in rows if role == HOST}


def allocate_inputs(
    graph: Graph, alignment: int, device: torch.device, *, external: Container[int] = ()
) -> dict[int, Location]:
    """A location for each input outside the plan's arenas, to which a step copies it when it begins.

    Buffers that are ``external`` get none: they stay where the caller has them.
    """
    offsets: dict[int, int] = {}
    end = 0
    for buffer, role in enumerate(graph.buffers.role):
        if role == INPUT and buffer not in external:
            offsets[buffer] = end
            end = round_up(end + graph.buffers.bytes[buffer], alignment)
    slab = Slab(end, alignment, device)
    return {buffer: (slab, offset) for buffer, offset in offsets.items()}


def storage_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The whole storage as ``uint8[bytes]``."""
    storage: Any = tensor.detach().untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (storage.nbytes(),), (1,))
