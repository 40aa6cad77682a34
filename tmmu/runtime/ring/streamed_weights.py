"""The weights of a ring under way: an arena of the device, an image on the host, and the loop between the two.

Programs run over them one at a time, pass by pass, as long as their plans have the same blocks, copies and order of
visits: then a pass of one may follow a pass of another, since a copy waits for visits and not for ops.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

from tmmu.errors import PlanMismatch
from tmmu.ir.graph import Graph
from tmmu.ir.ring import Block, Ring, Visit
from tmmu.runtime.device.memory import MemoryDevice
from tmmu.runtime.memory.slab import Slab
from tmmu.runtime.memory.zero import zero_tensor
from tmmu.runtime.ring.host_image import HostImage
from tmmu.runtime.ring.loop import StreamingLoop

_Moment: TypeAlias = tuple[int, frozenset[int]]
"""0 and the visits that are entered at one position, or 1 and those that are left there."""


@dataclass(slots=True, kw_only=True)
class StreamedWeights:
    """``graph`` is the one whose buffers the members of ``loop.ring`` name. ``under_way``: a pass has begun, and not
    ended; if it is when the next one begins, a run broke off.
    """

    device: MemoryDevice
    graph: Graph
    loop: StreamingLoop
    image: HostImage
    under_way: bool = False

    @property
    def slab(self) -> Slab:
        """The arena's memory."""
        return self.device.memory(self.loop.arena)

    @property
    def figures(self) -> dict[str, int]:
        """What streaming has taken so far, and bytes of ring and host image, by the keys of ``tmmu run --json``."""
        counts, ring = self.loop.counters, self.loop.ring
        return {
            "passes": counts.passes,
            "copies": counts.copies,
            "moved_bytes": counts.copied_bytes,
            "waits": counts.waits,
            "pass_bytes": ring.bytes_per_pass,
            "resident_bytes": ring.resident_bytes,
            "host_bytes": self.image.size,
            "pinned_bytes": self.image.pinning.pinned_bytes,
        }

    def begin_pass(self) -> None:
        """The first visit comes next; what broke off before is forgotten."""
        if self.under_way:
            self.loop.restart()
        self.under_way = True

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Block in which nothing is copied, and what streams is zeros: calls may be tried on it."""
        self.loop.restart()
        for block in self.loop.ring.blocks:
            if not block.resident:
                zero_tensor(self.slab.bytes(block.address, block.bytes))
        self.under_way = False
        try:
            yield
        finally:
            self.loop.restart()

    def require_same_passes(self, graph: Graph, ring: Ring) -> None:
        """``PLAN_MISMATCH`` unless passes of this ring and graph may alternate with those of the loop."""
        own = self.loop.ring
        same = (
            (_places(graph, ring) == _places(self.graph, own), "blocks lie elsewhere"),
            (ring.copies == own.copies and ring.bytes == own.bytes, "copies wait for other visits"),
            (_moments(ring.visits) == _moments(own.visits), "visits begin and end in another order"),
        )
        for is_same, difference in same:
            if not is_same:
                raise PlanMismatch(
                    f"the plan's ring is not that of the weights: {difference}", fix="plan it to follow that ring"
                )

    def close(self) -> None:
        """Waits for what is under way, and frees arena and image."""
        self.loop.close()
        self.image.close()


def _places(graph: Graph, ring: Ring) -> list[tuple[int, bool, int, Mapping[str, int]]]:
    names = graph.notes.buffers

    def offsets(block: Block) -> Mapping[str, int]:
        return {names[member.buffer]: member.offset for member in block.members}

    return [(block.address, block.resident, block.bytes, offsets(block)) for block in ring.blocks]


def _moments(visits: Sequence[Visit]) -> list[_Moment]:
    """What begins and ends at once, in order; what begins at a position comes before what ends there."""
    events = [(visit.first, 0, index) for index, visit in enumerate(visits)]
    events += [(visit.last, 1, index) for index, visit in enumerate(visits)]
    return [
        (kind, frozenset(index for _, _, index in group))
        for (_, kind), group in groupby(sorted(events), key=lambda event: event[:2])
    ]
