"""The weight ring: which weights stay on the device, which are streamed from the host, to which address, and when.

A *block* is what one copy moves: the read-only buffers of one layer, contiguous, at one fixed device address. A *visit*
is a run of ops that read a block, in the plan's order. A *pass* is one run of that order. Passes repeat, so the
schedule is cyclic: every visit of a streamed block has one *copy* in each pass. Copies run one after another in the
order of their visits (one link, one copy stream); ops run in the order of the plan (one compute stream). All other
ordering between the two is in the copies.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Final

from tmmu.ir.ids import BufferId, Bytes

VERSION: Final = 1
POLICIES: Final = ("cyclic", "skip_end", "slots", "double")


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One buffer of a block, ``offset`` bytes from the block's start."""

    buffer: BufferId
    offset: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Buffers that lie and move together, on the device at ``[address, address + bytes)`` in every pass.

    A resident block is loaded once, and no copy ever overwrites it. ``bytes`` is a multiple of the ring's alignment.
    """

    name: str
    bytes: int
    resident: bool
    address: int
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """The ops at positions ``first`` to ``last`` of the order, both included, during which ``block`` must be whole."""

    block: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VisitRef:
    """A visit as seen from a copy: in the copy's own pass (``lag`` 0) or in the pass before (``lag`` 1)."""

    visit: int
    lag: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """The one host-to-device copy per pass that brings the block of ``visit`` to its address before the visit begins.

    ``start``: the copy is issued when this visit begins, and no earlier; by then every visit in ``waits`` is issued.
    ``waits``: the visits whose bytes the copy overwrites, newest first. The copy may land only after their last ops.
    Ops run in order, so waiting for the first of them is enough.

    The first pass has no pass before it: copies whose ``start`` lies there are issued before the first op, and their
    waits for it are dropped.
    """

    visit: int
    start: VisitRef
    waits: tuple[VisitRef, ...]


@dataclass(frozen=True, kw_only=True)
class Ring:
    """A whole schedule in at most ``capacity`` bytes of device memory, resident blocks included.

    ``visits`` are those of all blocks, sorted by (first, last, block). ``copies`` are those of the streamed blocks, in
    the order of their visits, which is the order in which they use the link. ``depth`` is the least prefetch distance
    of any copy: how many visits of streamed blocks ahead of its own visit it is issued.
    """

    policy: str
    capacity: int
    alignment: int
    depth: int
    blocks: tuple[Block, ...]
    visits: tuple[Visit, ...]
    copies: tuple[Copy, ...]

    @cached_property
    def bytes(self) -> int:
        """Device memory for weights, in bytes: the end of the highest block."""
        return max((block.address + block.bytes for block in self.blocks), default=0)

    @cached_property
    def model_bytes(self) -> int:
        """The bytes of all blocks, resident and streamed."""
        return sum(block.bytes for block in self.blocks)

    @cached_property
    def resident_bytes(self) -> int:
        """The bytes of the resident blocks."""
        return sum(block.bytes for block in self.blocks if block.resident)

    @cached_property
    def bytes_per_pass(self) -> int:
        """The bytes that the link moves in each pass."""
        return sum(self.blocks[self.visits[copy.visit].block].bytes for copy in self.copies)

    @cached_property
    def host_offsets(self) -> tuple[int, ...]:
        """Byte offset of each block in the host image of the weights, which holds the blocks in their order."""
        return tuple(accumulate((block.bytes for block in self.blocks), initial=0))[:-1]


def ring_map(ring: Ring) -> dict[str, object]:
    """The value of the key ``ring`` in a plan file (docs/spec/plan.cddl), by columns."""
    blocks, visits, copies = ring.blocks, ring.visits, ring.copies
    return {
        "version": VERSION,
        "policy": ring.policy,
        "capacity": ring.capacity,
        "alignment": ring.alignment,
        "depth": ring.depth,
        "blocks": {
            "name": [block.name for block in blocks],
            "bytes": [block.bytes for block in blocks],
            "resident": [block.resident for block in blocks],
            "address": [block.address for block in blocks],
            "buffer": [[member.buffer for member in block.members] for block in blocks],
            "offset": [[member.offset for member in block.members] for block in blocks],
        },
        # The field names of a visit are column names of the file: renaming one changes the format.
        "visits": {name: [getattr(visit, name) for visit in visits] for name in Visit.__slots__},
        "copies": {
            "visit": [copy.visit for copy in copies],
            "start": [[copy.start.visit, copy.start.lag] for copy in copies],
            "waits": [[[wait.visit, wait.lag] for wait in copy.waits] for copy in copies],
        },
    }
