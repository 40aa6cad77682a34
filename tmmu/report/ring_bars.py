"""The ring's Gantt chart: for each block its address, the ops that need it, and the time that its copies have."""

from collections.abc import Iterator
from dataclasses import dataclass

from tmmu.ir.ring import Block, Ring

RESIDENT = "resident"
VISIT = "visit"
COPY = "copy"


@dataclass(frozen=True, slots=True, kw_only=True)
class RingBar:
    """A bar ``[start, end)`` in positions of one pass, at the address of ``block``.

    A ``visit``: the ops that read the block. A ``copy``: from its issue to the first op that needs it, which is the
    time that the link has. A copy that is issued in the pass before is two bars: its end, and, at the end of the
    pass, its beginning for the next one. ``resident``: loaded once.
    """

    block: int
    kind: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RingChart:
    """The ring's figures, in bytes, its blocks, and their bars: residents, visits, copies."""

    policy: str
    capacity: int
    bytes: int
    resident: int
    weights: int
    moved: int
    depth: int
    blocks: tuple[Block, ...]
    bars: tuple[RingBar, ...]


def ring_chart(ring: Ring, positions: int) -> RingChart:
    """The chart of one pass of ``positions`` ops."""
    residents = (index for index, block in enumerate(ring.blocks) if block.resident)
    return RingChart(
        policy=ring.policy,
        capacity=ring.capacity,
        bytes=ring.bytes,
        resident=ring.resident_bytes,
        weights=ring.model_bytes,
        moved=ring.bytes_per_pass,
        depth=ring.depth,
        blocks=ring.blocks,
        bars=(
            *(RingBar(block=index, kind=RESIDENT, start=0, end=positions) for index in residents),
            *_visit_bars(ring),
            *_copy_bars(ring, positions),
        ),
    )


def _visit_bars(ring: Ring) -> Iterator[RingBar]:
    for visit in ring.visits:
        if not ring.blocks[visit.block].resident:
            yield RingBar(block=visit.block, kind=VISIT, start=visit.first, end=visit.last + 1)


def _copy_bars(ring: Ring, positions: int) -> Iterator[RingBar]:
    for copy in ring.copies:
        visit, issue = ring.visits[copy.visit], ring.visits[copy.start.visit].first
        spans = ((issue, positions), (0, visit.first)) if copy.start.lag else ((issue, visit.first),)
        for start, end in spans:
            if start < end:
                yield RingBar(block=visit.block, kind=COPY, start=start, end=end)
