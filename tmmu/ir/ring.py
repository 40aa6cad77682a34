"""The weight ring: which weights stay on the device, which stream through it, where, and after whom.

A *block* is what one copy moves: the read-only buffers of one layer, contiguous, at one fixed device address. A *visit*
is a run of ops that read a block, in the plan's order. Passes repeat, so the schedule is cyclic: every visit of a
streamed block has one *copy* in each pass. Copies run on one link one after another in the order of their visits,
computing runs on one lane in the order of the plan; what else orders the two is in the copies.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Final

VERSION: Final = 1
POLICIES: Final = ("cyclic", "skip_end", "slots", "double")


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One buffer of a block, at ``offset`` bytes from the block's start."""

    buffer: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Buffers that lie and move together; on the device at ``[address, address + bytes)``, in every pass.

    A resident block is loaded once and nothing ever lands on it. ``bytes`` is a multiple of the ring's alignment.
    """

    name: str
    bytes: int
    resident: bool
    address: int
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """The ops from position ``first`` to position ``last`` of the order, both included, find ``block`` whole."""

    block: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VisitRef:
    """A visit of the pass of the copy that names it (``lag`` 0), or of the pass before (``lag`` 1)."""

    visit: int
    lag: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """Before the first op of ``visit``, its block's bytes go from the host to its address: one copy, once per pass.

    It is issued when visit ``start`` starts, and no earlier: every reader that it waits for has been issued by then.
    It lands only after the last op of each of ``waits``, the visits whose bytes it overwrites, newest first: as
    ops run in order, waiting for the first of them is enough. In the first pass there is no pass before: copies that
    would start in it are issued before the first op, and a wait for it is none.
    """

    visit: int
    start: VisitRef
    waits: tuple[VisitRef, ...]


@dataclass(frozen=True, kw_only=True)
class Ring:
    """A whole schedule in at most ``capacity`` bytes of the device, resident blocks included.

    ``visits`` are of all blocks, by (first, last, block); ``copies`` of the streamed ones, in the order of their
    visits, which is the order of the link. ``depth`` is how many visits of streamed blocks ahead of its own a copy
    is issued, of the copy that is issued least ahead.
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
        """What the device holds for weights: the end of the highest block."""
        return max((block.address + block.bytes for block in self.blocks), default=0)

    @cached_property
    def model_bytes(self) -> int:
        """The bytes of all blocks."""
        return sum(block.bytes for block in self.blocks)

    @cached_property
    def resident_bytes(self) -> int:
        """The bytes of the blocks that stay."""
        return sum(block.bytes for block in self.blocks if block.resident)

    @cached_property
    def bytes_per_pass(self) -> int:
        """What the link moves in each pass."""
        return sum(self.blocks[self.visits[copy.visit].block].bytes for copy in self.copies)

    @cached_property
    def host_offsets(self) -> tuple[int, ...]:
        """Per block, where it starts in the host's image of the weights: blocks one after another, in their order."""
        return tuple(accumulate((block.bytes for block in self.blocks), initial=0))[:-1]


def ring_map(ring: Ring) -> dict[str, object]:
    """The value of the key ``ring`` in a plan file: columns, and of each row of a list of lists its own columns."""
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
        "visits": {name: [getattr(visit, name) for visit in visits] for name in Visit.__slots__},
        "copies": {
            "visit": [copy.visit for copy in copies],
            "start": [[copy.start.visit, copy.start.lag] for copy in copies],
            "waits": [[[wait.visit, wait.lag] for wait in copy.waits] for copy in copies],
        },
    }
