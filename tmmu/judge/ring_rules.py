"""The judge of a ring: what a schedule must be for its graph and order. Knows nothing of the planner.

Like the run on paper of a plan, ``lands`` carries the schedule out: copies in the order of the link, over as many
passes as it takes to repeat, with who owns which bytes and how far the lane must have come by then.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, pairwise
from typing import Final, TypeAlias

from tmmu.ir.fault import U64_MAX, Fault
from tmmu.ir.graph import CONSTANT, PARAMETER, Graph
from tmmu.ir.plan import Plan
from tmmu.ir.ring import Block, Ring, Visit, VisitRef
from tmmu.judge.ring_schema import ring_schema_faults
from tmmu.judge.spans import saved_values

PASSES: Final = 3
"""The first, that finds nothing to wait for; the second; and one like all that follow."""
FOR_EVER: Final = 1 << 80
"""After the last op of any pass: what stays is read until then."""


@dataclass(frozen=True, kw_only=True)
class RingContext:
    """One judgement. Needs a ring that is well formed; everything else it works out itself."""

    graph: Graph
    plan: Plan
    ring: Ring

    @cached_property
    def reads(self) -> dict[int, list[int]]:
        """Per weight that an op of the order reads, the positions that read it, in order."""
        home, role = self.graph.values.buffer, self.graph.buffers.role
        found: dict[int, list[int]] = {}
        for position, op in enumerate(self.plan.order):
            for buffer in dict.fromkeys(home[value] for value in self.graph.ops.reads[op]):
                if role[buffer] in (PARAMETER, CONSTANT):
                    found.setdefault(buffer, []).append(position)
        return found

    @cached_property
    def needed_after(self) -> frozenset[int]:
        """Buffers that the caller or a gradient reads after the last op."""
        late = [value for _, value in saved_values(self.graph, self.plan.order, self.plan.mode, self.plan.preset)]
        return frozenset(self.graph.values.buffer[value] for value in (*self.graph.outputs, *late))

    @cached_property
    def visits_of(self) -> tuple[tuple[Visit, ...], ...]:
        """Per block its visits."""
        found: list[list[Visit]] = [[] for _ in self.ring.blocks]
        for visit in self.ring.visits:
            found[visit.block].append(visit)
        return tuple(map(tuple, found))

    def ends(self, when: VisitRef, turn: int) -> int:
        """The position of the last op of a visit named in pass ``turn``, counted on from pass to pass."""
        return (turn - when.lag) * len(self.plan.order) + self.ring.visits[when.visit].last

    def starts(self, when: VisitRef, turn: int) -> int:
        """As ``ends``, of its first op."""
        return (turn - when.lag) * len(self.plan.order) + self.ring.visits[when.visit].first


Check: TypeAlias = Callable[[RingContext], Iterable[Fault]]


def members(case: RingContext) -> Iterator[Fault]:
    """Every weight that an op reads is a member of one block, once, whole and aligned; nothing else is one."""
    seen: dict[int, int] = {}
    for index, block in enumerate(case.ring.blocks):
        for member in block.members:
            if member.buffer in seen:
                yield _at(
                    "members", f"buffer {member.buffer} is in block {seen[member.buffer]} and {index}", member.buffer
                )
            elif member.buffer not in case.reads:
                yield _at(
                    "members", f"buffer {member.buffer} of block {index} is no weight that is read", member.buffer
                )
            seen[member.buffer] = index
        yield from _inside(case, index, block)
    for buffer in sorted(case.reads.keys() - seen.keys()):
        yield _at("members", f"weight {buffer} is read and in no block", buffer)


def _inside(case: RingContext, index: int, block: Block) -> Iterator[Fault]:
    sizes, end = case.graph.buffers.bytes, 0
    for member in sorted(block.members, key=lambda member: (member.offset, member.buffer)):
        size = sizes[member.buffer] if member.buffer < len(sizes) else 0
        if member.offset % case.ring.alignment or member.offset + size > block.bytes or (size and member.offset < end):
            what = f"buffer {member.buffer} of {size} bytes cannot lie at {member.offset} of block {index}"
            yield _at("members", f"{what}: unaligned, past its end or over another", member.buffer)
        end = max(end, member.offset + size)


def blocks(case: RingContext) -> Iterator[Fault]:
    """Blocks are aligned and end within the capacity; on one that stays no other lies."""
    ring, step = case.ring, case.ring.alignment
    for index, block in enumerate(ring.blocks):
        if block.address % step or block.bytes % step or not block.bytes or not block.members:
            yield _fault("blocks", f"block {index} of {block.bytes} bytes at {block.address} is empty or not aligned")
        if block.address + block.bytes > min(ring.capacity, U64_MAX):
            yield _fault("blocks", f"block {index} ends at {block.address + block.bytes}, past {ring.capacity}")
    rows = sorted(range(len(ring.blocks)), key=lambda i: (ring.blocks[i].address, i))
    reach, owner = 0, -1
    stays, stays_by = 0, -1
    for index in rows:
        block = ring.blocks[index]
        low, other = (reach, owner) if block.resident else (stays, stays_by)
        if block.address < low:
            yield _fault("blocks", f"block {index} lies on block {other}, and one of them stays", (block.address, low))
        end = block.address + block.bytes
        reach, owner = max((reach, owner), (end, index))
        stays, stays_by = max((stays, stays_by), (end, index)) if block.resident else (stays, stays_by)


def visits(case: RingContext) -> Iterator[Fault]:
    """Visits are in order, those of a block apart; each starts and ends with a read, and every read is in one."""
    rows = case.ring.visits
    for one, other in pairwise(rows):
        if (one.first, one.last, one.block) >= (other.first, other.last, other.block):
            yield _fault("visits", f"the visit from op {other.first} to {other.last} is out of order")
    for index, block in enumerate(case.ring.blocks):
        read = sorted({position for member in block.members for position in case.reads.get(member.buffer, ())})
        inside = [[p for p in read if visit.first <= p <= visit.last] for visit in case.visits_of[index]]
        for visit, found in zip(case.visits_of[index], inside, strict=True):
            if not found or (found[0], found[-1]) != (visit.first, visit.last):
                yield _fault("visits", f"block {index} is not read at both {visit.first} and {visit.last}")
        if sorted(chain.from_iterable(inside)) != read:
            yield _fault("visits", f"the visits of block {index} do not hold each of its {len(read)} reads once")


def resident(case: RingContext) -> Iterator[Fault]:
    """A weight that is read at several places of a stage, or after the last op, stays."""
    order, stage = case.plan.order, case.graph.ops.stage
    for index, block in enumerate(case.ring.blocks):
        stages = [stage[order[visit.first]] for visit in case.visits_of[index] if visit.first < len(order)]
        if not block.resident and len(set(stages)) < len(stages):
            yield _fault("resident", f"block {index} streams, and is read at several places")
        for member in block.members:
            if not block.resident and member.buffer in case.needed_after:
                yield _at("resident", f"block {index} streams, and buffer {member.buffer} is read later", member.buffer)


def copies(case: RingContext) -> Iterator[Fault]:
    """Each visit of a block that streams has one copy, in the order of visits; there are no others."""
    ring = case.ring
    wanted = [index for index, visit in enumerate(ring.visits) if not ring.blocks[visit.block].resident]
    found = [copy.visit for copy in ring.copies]
    if found != wanted:
        yield _fault("copies", f"there are copies for visits {found[:8]}…, not for {wanted[:8]}…")


def starts(case: RingContext) -> Iterator[Fault]:
    """A copy starts by its own visit, in the order of the link, once all readers that it waits for have been issued."""
    ring, before = case.ring, -FOR_EVER
    for turn in (1, 2):
        for copy in ring.copies:
            start = case.starts(copy.start, turn)
            position = (turn - copy.start.lag) * len(ring.visits) + copy.start.visit
            if position > turn * len(ring.visits) + copy.visit:
                yield _fault("starts", f"the copy for visit {copy.visit} is issued after that visit starts")
            if position < before:
                yield _fault("starts", f"the copy for visit {copy.visit} is issued before the one ahead of it")
            before = position
            ends = [case.ends(wait, turn) for wait in copy.waits]
            if ends != sorted(ends, reverse=True):
                yield _fault("starts", f"the waits of the copy for visit {copy.visit} are not newest first")
            if not ends or ends[0] >= start:
                what = f"the copy for visit {copy.visit} is issued while a reader that it waits for is not, or has none"
                yield _fault("starts", what)


def lands(case: RingContext) -> Iterator[Fault]:
    """No copy lands on bytes that a visit still reads, in the first pass or any other."""
    held = [(b.address, b.address + b.bytes, FOR_EVER, i, 0) for i, b in enumerate(case.ring.blocks) if b.resident]
    done = -1
    for turn in range(PASSES):
        for copy in case.ring.copies:
            done = max([done, *(case.ends(wait, turn) for wait in copy.waits if wait.lag <= turn)])
            visit = case.ring.visits[copy.visit]
            block = case.ring.blocks[visit.block]
            low, high = block.address, block.address + block.bytes
            for start, end, until, whose, pass_of in held:
                if start < high and low < end and until > done:
                    what = f"in pass {turn} the copy for visit {copy.visit} lands on block {whose} of pass {pass_of}"
                    span = (max(low, start), min(high, end))
                    yield _fault("lands", f"{what}, which is still read", span, by=_op(case, visit))
            held = [part for old in held for part in _left(old, low, high)]
            held.append((low, high, case.ends(VisitRef(visit=copy.visit, lag=0), turn), visit.block, turn))


Held: TypeAlias = tuple[int, int, int, int, int]
"""Bytes from, to, until which position they are read, and the block and pass that put them there."""


def _left(held: Held, low: int, high: int) -> Iterator[Held]:
    start, end, *rest = held
    until, block, turn = rest
    if end <= low or high <= start:
        yield held
        return
    if start < low:
        yield start, low, until, block, turn
    if high < end:
        yield high, end, until, block, turn


def _op(case: RingContext, visit: Visit) -> int | None:
    return case.plan.order[visit.first] if visit.first < len(case.plan.order) else None


def depth(case: RingContext) -> Iterator[Fault]:
    """The depth is the least number of visits of streamed blocks that a copy is issued ahead of its own."""
    count = len(case.ring.visits)
    streamed = [not case.ring.blocks[visit.block].resident for visit in case.ring.visits]
    before = list(accumulate(streamed, initial=0))
    ahead = [
        before[copy.visit] - before[copy.start.visit] + copy.start.lag * before[count] for copy in case.ring.copies
    ]
    if case.ring.depth != min(ahead, default=0):
        yield _fault("depth", f"the depth is {min(ahead, default=0)}, not {case.ring.depth}")


def policy(case: RingContext) -> Iterator[Fault]:
    """Under ``skip_end``, ``slots`` and ``double`` the streamed blocks lie where these say, above those that stay."""
    ring = case.ring
    base = sum(block.bytes for block in ring.blocks if block.resident)
    moving = [block for block in ring.blocks if not block.resident]
    largest = max((block.bytes for block in moving), default=1)
    slots = 2 if ring.policy == "double" else max(1, min(len(moving), (ring.capacity - base) // largest))
    at = 0
    for index, block in enumerate(moving if ring.policy != "cyclic" else ()):
        if ring.policy == "skip_end":
            at = 0 if base + at + block.bytes > ring.capacity else at
        else:
            at = index % slots * largest
        if block.address != base + at:
            yield _fault("policy", f"{ring.policy} puts {block.name} at {base + at}, not {block.address}")
        at += block.bytes


def _fault(rule: str, what: str, span: tuple[int, int] | None = None, by: int | None = None) -> Fault:
    return Fault(rule=f"ring-{rule}", what=what, bytes=span, by=by)


def _at(rule: str, what: str, buffer: int) -> Fault:
    return Fault(rule=f"ring-{rule}", what=what, buffer=buffer)


RULES: Final[tuple[Check, ...]] = (members, blocks, visits, resident, copies, starts, lands, depth, policy)
NAMES: Final = ("ring-form", *(f"ring-{rule.__name__}" for rule in RULES))


def ring_faults(graph: Graph, plan: Plan, ring: Ring) -> tuple[Fault, ...]:
    """Every fault of ``ring`` as the ring of ``plan``, which is sound without it; form is asked first, and alone."""
    case = RingContext(graph=graph, plan=plan, ring=ring)
    return tuple(ring_schema_faults(ring)) or tuple(chain.from_iterable(rule(case) for rule in RULES))
