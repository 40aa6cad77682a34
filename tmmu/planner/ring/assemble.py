"""A whole schedule out of a choice: the blocks that stay at the bottom, the ring above them."""

from tmmu.ir.ring import Block, Ring
from tmmu.planner.ring.copies import derive_copies, prefetch_distances
from tmmu.planner.ring.cyclic import Candidate
from tmmu.planner.ring.problem import RingProblem


def assemble(problem: RingProblem, choice: Candidate, *, policy: str, capacity: int) -> Ring:
    """The ring of this choice. Blocks that stay lie one after another in their order."""
    where = dict(zip(choice.streamed.blocks, choice.address, strict=True))
    base, at, blocks = choice.streamed.resident_bytes, 0, []
    for block, size in enumerate(problem.bytes):
        resident = block not in where
        blocks.append(
            Block(
                name=problem.names[block],
                bytes=size,
                resident=resident,
                address=at if resident else base + where[block],
                members=problem.members[block],
            )
        )
        at += size if resident else 0
    copies = derive_copies(choice.streamed, choice.waits)
    return Ring(
        policy=policy,
        capacity=capacity,
        alignment=problem.alignment,
        depth=min(prefetch_distances(choice.streamed, copies), default=0),
        blocks=tuple(blocks),
        visits=problem.visits,
        copies=copies,
    )
