"""The rules of a ring: what a schedule of weight copies must be for its graph and order. Knows nothing of the planner.

``lands`` carries the schedule out, as ``judge.execute`` does a plan. State: per byte of the device, the block that lies
there and the position until which it is read; and ``landed``, the position of the last op that the copies so far have
waited for. Copies run one after another, in the order of their visits, so a copy lands no earlier
than every wait of those before it: ``landed`` never decreases. A copy demands that all bytes of its block are read no
later than that, and then takes them. Positions count on from pass to pass. Three passes are enough: waits reach back
at most one pass, so the first has nothing to wait for, the second waits for the first, and every later one repeats the
third.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, pairwise
from typing import Final, TypeAlias

from tmmu.ir.fault import U64_MAX, Fault
from tmmu.ir.graph import CONSTANT, PARAMETER, Graph
from tmmu.ir.ids import BufferId
from tmmu.ir.plan import Plan
from tmmu.ir.ring import Block, Ring, Visit, VisitRef
from tmmu.judge.interval import Ownership
from tmmu.judge.ring_schema import ring_schema_faults
from tmmu.judge.spans import saved_values

PASSES: Final = 3
FOREVER: Final = 1 << 80
"""A position after the last op of any pass: until then a resident block is read."""


@dataclass(frozen=True, kw_only=True)
class RingContext:
    """What every rule is given. All but ``graph``, ``plan`` and ``ring`` needs a ring that passes the schema."""

    graph: Graph
    plan: Plan
    ring: Ring

    @cached_property
    def reads(self) -> dict[BufferId, list[int]]:
        """Per weight that an op of the order reads, the positions that read it, in order."""
        buffer_of, role = self.graph.values.buffer, self.graph.buffers.role
        reads: dict[BufferId, list[int]] = {}
        for position, op in enumerate(self.plan.order):
            for buffer in dict.fromkeys(buffer_of[value] for value in self.graph.ops.reads[op]):
                if role[buffer] in (PARAMETER, CONSTANT):
                    reads.setdefault(buffer, []).append(position)
        return reads

    @cached_property
    def live_out(self) -> frozenset[BufferId]:
        """Buffers that the caller or a gradient reads after the last op."""
        late = [value for _, value in saved_values(self.graph, self.plan.order, self.plan.mode, self.plan.preset)]
        return frozenset(self.graph.values.buffer[value] for value in (*self.graph.outputs, *late))

    @cached_property
    def visits_of(self) -> tuple[tuple[Visit, ...], ...]:
        """Per block, its visits."""
        by_block: list[list[Visit]] = [[] for _ in self.ring.blocks]
        for visit in self.ring.visits:
            by_block[visit.block].append(visit)
        return tuple(map(tuple, by_block))

    def last_position(self, ref: VisitRef, pass_index: int) -> int:
        """The position of the last op of a visit that is named in pass ``pass_index``, counted on from pass to pass."""
        return (pass_index - ref.lag) * len(self.plan.order) + self.ring.visits[ref.visit].last

    def first_position(self, ref: VisitRef, pass_index: int) -> int:
        """As ``last_position``, of its first op."""
        return (pass_index - ref.lag) * len(self.plan.order) + self.ring.visits[ref.visit].first


Check: TypeAlias = Callable[[RingContext], Iterable[Fault]]


def members(context: RingContext) -> Iterator[Fault]:
    """Every weight that an op reads is a member of one block, once, whole and aligned; nothing else is one."""
    block_of: dict[int, int] = {}
    for index, block in enumerate(context.ring.blocks):
        for member in block.members:
            buffer = member.buffer
            if buffer in block_of:
                yield _member_fault(f"buffer {buffer} is in block {block_of[buffer]} and {index}", buffer)
            elif buffer not in context.reads:
                yield _member_fault(f"buffer {buffer} of block {index} is no weight that is read", buffer)
            block_of[buffer] = index
        yield from _offset_faults(context, index, block)
    for buffer in sorted(context.reads.keys() - block_of.keys()):
        yield _member_fault(f"weight {buffer} is read and in no block", buffer)


def _offset_faults(context: RingContext, index: int, block: Block) -> Iterator[Fault]:
    """Members are aligned, inside the block, and over no other."""
    sizes, end, step = context.graph.buffers.bytes, 0, context.ring.alignment
    for member in sorted(block.members, key=lambda member: (member.offset, member.buffer)):
        # A buffer that is none is a fault already.
        size = sizes[member.buffer] if member.buffer < len(sizes) else 0
        if member.offset % step or member.offset + size > block.bytes or (size and member.offset < end):
            message = f"buffer {member.buffer} of {size} bytes cannot lie at {member.offset} of block {index}"
            yield _member_fault(f"{message}: unaligned, past its end or over another", member.buffer)
        end = max(end, member.offset + size)


def blocks(context: RingContext) -> Iterator[Fault]:
    """Blocks are aligned and end within the capacity; on one that stays no other lies."""
    ring, step = context.ring, context.ring.alignment
    for index, block in enumerate(ring.blocks):
        if block.address % step or block.bytes % step or not block.bytes or not block.members:
            yield _fault("blocks", f"block {index} of {block.bytes} bytes at {block.address} is empty or not aligned")
        if block.address + block.bytes > min(ring.capacity, U64_MAX):
            yield _fault("blocks", f"block {index} ends at {block.address + block.bytes}, past {ring.capacity}")
    # (end, block) of the highest end so far, of any block and of a resident one. By ascending address, a block lies on
    # an earlier one if and only if it begins below that end; streamed blocks may lie on each other.
    highest, highest_resident = (0, -1), (0, -1)
    for index in sorted(range(len(ring.blocks)), key=lambda i: (ring.blocks[i].address, i)):
        block = ring.blocks[index]
        end, neighbour = highest if block.resident else highest_resident
        if block.address < end:
            message = f"block {index} lies on block {neighbour}, and one of them stays"
            yield _fault("blocks", message, (block.address, end))
        own_end = (block.address + block.bytes, index)
        highest = max(highest, own_end)
        highest_resident = max(highest_resident, own_end) if block.resident else highest_resident


def visits(context: RingContext) -> Iterator[Fault]:
    """Visits are in order, those of a block apart; each starts and ends with a read, and every read is in one."""
    for before, after in pairwise(context.ring.visits):
        if (before.first, before.last, before.block) >= (after.first, after.last, after.block):
            yield _fault("visits", f"the visit from op {after.first} to {after.last} is out of order")
    for index, block in enumerate(context.ring.blocks):
        reads = sorted({position for member in block.members for position in context.reads.get(member.buffer, ())})
        own_visits = context.visits_of[index]
        reads_in = [[p for p in reads if visit.first <= p <= visit.last] for visit in own_visits]
        for visit, positions in zip(own_visits, reads_in, strict=True):
            if not positions or (positions[0], positions[-1]) != (visit.first, visit.last):
                yield _fault("visits", f"block {index} is not read at both {visit.first} and {visit.last}")
        if sorted(chain.from_iterable(reads_in)) != reads:
            yield _fault("visits", f"the visits of block {index} do not hold each of its {len(reads)} reads once")


def resident(context: RingContext) -> Iterator[Fault]:
    """A weight that is read at several places of a stage, or after the last op, stays."""
    order, stage = context.plan.order, context.graph.ops.stage
    for index, block in enumerate(context.ring.blocks):
        stages = [stage[order[visit.first]] for visit in context.visits_of[index] if visit.first < len(order)]
        if not block.resident and len(set(stages)) < len(stages):
            yield _fault("resident", f"block {index} streams, and is read at several places")
        for member in block.members:
            if not block.resident and member.buffer in context.live_out:
                message = f"block {index} streams, and buffer {member.buffer} is read later"
                yield Fault(rule="ring-resident", what=message, buffer=member.buffer)


def copies(context: RingContext) -> Iterator[Fault]:
    """Each visit of a block that streams has one copy, in the order of visits; there are no others."""
    ring = context.ring
    expected = [index for index, visit in enumerate(ring.visits) if not ring.blocks[visit.block].resident]
    actual = [copy.visit for copy in ring.copies]
    if actual != expected:
        yield _fault("copies", f"there are copies for visits {actual[:8]}…, not for {expected[:8]}…")


def starts(context: RingContext) -> Iterator[Fault]:
    """A copy starts by its own visit, in the order of the link, once all readers that it waits for have been issued."""
    ring, previous = context.ring, -FOREVER
    for pass_index in (1, 2):
        for copy in ring.copies:
            start = context.first_position(copy.start, pass_index)
            visit = (pass_index - copy.start.lag) * len(ring.visits) + copy.start.visit
            if visit > pass_index * len(ring.visits) + copy.visit:
                yield _fault("starts", f"the copy for visit {copy.visit} is issued after that visit starts")
            if visit < previous:
                yield _fault("starts", f"the copy for visit {copy.visit} is issued before the one ahead of it")
            previous = visit
            ends = [context.last_position(wait, pass_index) for wait in copy.waits]
            if ends != sorted(ends, reverse=True):
                yield _fault("starts", f"the waits of the copy for visit {copy.visit} are not newest first")
            if not ends or ends[0] >= start:
                problem = "is issued while a reader that it waits for is not, or has none"
                yield _fault("starts", f"the copy for visit {copy.visit} {problem}")


def lands(context: RingContext) -> Iterator[Fault]:
    """No copy lands on bytes that a visit still reads, in the first pass or any other."""
    ring, memory, landed = context.ring, Ownership[_Reader](), -1
    for index, block in enumerate(ring.blocks):
        if block.resident:
            memory.claim(block.address, block.address + block.bytes, (FOREVER, index, 0))
    for pass_index in range(PASSES):
        for copy in ring.copies:
            waits = (context.last_position(wait, pass_index) for wait in copy.waits if wait.lag <= pass_index)
            landed = max([landed, *waits])
            visit = ring.visits[copy.visit]
            low = ring.blocks[visit.block].address
            high = low + ring.blocks[visit.block].bytes
            for begin, end, reader in memory.pieces(low, high):
                if reader and reader[0] > landed:
                    target = f"block {reader[1]} of pass {reader[2]}, which is still read"
                    message = f"in pass {pass_index} the copy for visit {copy.visit} lands on {target}"
                    yield _fault("lands", message, (begin, end), by=_first_op(context, visit))
            until = context.last_position(VisitRef(visit=copy.visit, lag=0), pass_index)
            memory.claim(low, high, (until, visit.block, pass_index))


_Reader: TypeAlias = tuple[int, int, int]
"""The position until which bytes are read, and the block and pass that put them there."""


def _first_op(context: RingContext, visit: Visit) -> int | None:
    return context.plan.order[visit.first] if visit.first < len(context.plan.order) else None


def depth(context: RingContext) -> Iterator[Fault]:
    """The depth is the least number of visits of streamed blocks that a copy is issued ahead of its own."""
    ring = context.ring
    is_streamed = [not ring.blocks[visit.block].resident for visit in ring.visits]
    before = list(accumulate(is_streamed, initial=0))
    per_pass = before[-1]
    ahead = [before[copy.visit] - before[copy.start.visit] + copy.start.lag * per_pass for copy in ring.copies]
    if ring.depth != min(ahead, default=0):
        yield _fault("depth", f"the depth is {min(ahead, default=0)}, not {ring.depth}")


def policy(context: RingContext) -> Iterator[Fault]:
    """Under ``skip_end``, ``slots`` and ``double`` the streamed blocks lie where these say, above those that stay."""
    ring = context.ring
    base = sum(block.bytes for block in ring.blocks if block.resident)
    streamed = [block for block in ring.blocks if not block.resident]
    # A block of no bytes is a fault of ``blocks`` already.
    largest = max((block.bytes for block in streamed), default=0) or 1
    slots = 2 if ring.policy == "double" else max(1, min(len(streamed), (ring.capacity - base) // largest))
    offset = 0
    for index, block in enumerate(streamed if ring.policy != "cyclic" else ()):
        if ring.policy == "skip_end":
            offset = 0 if base + offset + block.bytes > ring.capacity else offset
        else:
            offset = index % slots * largest
        if block.address != base + offset:
            yield _fault("policy", f"{ring.policy} puts {block.name} at {base + offset}, not {block.address}")
        offset += block.bytes


def _fault(rule: str, message: str, span: tuple[int, int] | None = None, by: int | None = None) -> Fault:
    return Fault(rule=f"ring-{rule}", what=message, bytes=span, by=by)


def _member_fault(message: str, buffer: int) -> Fault:
    return Fault(rule="ring-members", what=message, buffer=buffer)


RULES: Final[tuple[Check, ...]] = (members, blocks, visits, resident, copies, starts, lands, depth, policy)
NAMES: Final = (
    *("ring-form", "ring-members", "ring-blocks", "ring-visits", "ring-resident"),
    *("ring-copies", "ring-starts", "ring-lands", "ring-depth", "ring-policy"),
)


def ring_faults(graph: Graph, plan: Plan, ring: Ring) -> tuple[Fault, ...]:
    """Every fault of ``ring`` as the ring of ``plan``, which is sound without it; those of the schema come alone."""
    context = RingContext(graph=graph, plan=plan, ring=ring)
    return tuple(ring_schema_faults(ring)) or tuple(chain.from_iterable(rule(context) for rule in RULES))
