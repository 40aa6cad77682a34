"""The ring of a plan that runs over the ring of another: prefill and decode of one model share one stream of weights.

The two read the same weights, layer by layer in the same order; what differs is which ops read them, and how buffers
are numbered. So blocks, addresses and copies are those of the other ring, and the visits are the plan's own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from tmmu.errors import UnsupportedOp
from tmmu.ir.graph import Graph
from tmmu.ir.ids import BufferId
from tmmu.ir.plan import Plan
from tmmu.ir.ring import Block, Member, Ring, Visit
from tmmu.planner.ring.prepare import problem_of
from tmmu.planner.ring.problem import RingProblem
from tmmu.planner.ring.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedRing:
    """A ring, and the names of the buffers of the graph that it was made for, by which another graph knows them."""

    ring: Ring
    names: Sequence[str]

    def block_of_names(self) -> Mapping[frozenset[str], int]:
        """The index of each block by the names of its members."""
        return {
            frozenset(self.names[member.buffer] for member in block.members): index
            for index, block in enumerate(self.ring.blocks)
        }


def follow_ring(graph: Graph, plan: Plan, leader: NamedRing) -> Plan:
    """``plan`` with the blocks, addresses and copies of ``leader``, and visits of its own.

    ``UNSUPPORTED_OP`` where its passes read other blocks, or the same ones in another order.
    """
    problem = problem_of(graph, plan, Profile())
    names = graph.notes.buffers
    index_of, known = leader.block_of_names(), []
    for members in problem.members:
        index = index_of.get(frozenset(names[member.buffer] for member in members))
        if index is None:
            _refuse(f"{names[members[0].buffer]} is read with other weights, or is not there")
        known.append(index)
    visits = _visits(problem, known)
    if [visit.block for visit in visits] != [visit.block for visit in leader.ring.visits]:
        _refuse("layers are read in another order")
    buffer_of = {name: buffer for buffer, name in enumerate(names)}
    blocks = tuple(_own_members(block, leader.names, buffer_of) for block in leader.ring.blocks)
    return replace(plan, ring=replace(leader.ring, blocks=blocks, visits=visits))


def _visits(problem: RingProblem, known: Sequence[int]) -> tuple[Visit, ...]:
    visits = [replace(visit, block=known[visit.block]) for visit in problem.visits]
    return tuple(sorted(visits, key=lambda visit: (visit.first, visit.last, visit.block)))


def _own_members(block: Block, names: Sequence[str], buffer_of: Mapping[str, int]) -> Block:
    """The block with the plan's own numbers for its buffers, at the offsets that they have."""
    rows = sorted((buffer_of[names[member.buffer]], member.offset) for member in block.members)
    return replace(block, members=tuple(Member(buffer=BufferId(buffer), offset=offset) for buffer, offset in rows))


def _refuse(reason: str) -> NoReturn:
    raise UnsupportedOp(
        f"two steps of the model cannot share one stream of weights: {reason}", fix="run it without a ring"
    )
