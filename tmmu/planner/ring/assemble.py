"""From a candidate to the ring of a plan: resident blocks at the bottom, the streamed part above them."""

from tmmu.ir.ring import Block, Ring
from tmmu.planner.ring.copies import derive_copies, prefetch_distances
from tmmu.planner.ring.cyclic import Candidate
from tmmu.planner.ring.problem import RingProblem


def assemble(problem: RingProblem, candidate: Candidate, *, policy: str, capacity: int) -> Ring:
    """The ring of ``candidate``; resident blocks lie one after another in their order."""
    streamed = candidate.streamed
    address = dict(zip(streamed.blocks, candidate.address, strict=True))
    resident_end, blocks = 0, []
    for block, size in enumerate(problem.bytes):
        resident = block not in address
        blocks.append(
            Block(
                name=problem.names[block],
                bytes=size,
                resident=resident,
                address=resident_end if resident else streamed.resident_bytes + address[block],
                members=problem.members[block],
            )
        )
        resident_end += size if resident else 0
    copies = derive_copies(streamed, candidate.waits)
    return Ring(
        policy=policy,
        capacity=capacity,
        alignment=problem.alignment,
        depth=min(prefetch_distances(streamed, copies), default=0),
        blocks=tuple(blocks),
        visits=problem.visits,
        copies=copies,
    )
