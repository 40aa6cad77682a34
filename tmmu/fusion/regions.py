"""Which ops of a program become one: regions of neighbours, in the order in which they stand.

A region is what an op joins while all of this holds, and its first op begins a new one elsewhere:

- every member has a row in ``operator_kinds``, numbers that are the same in each step, and dtypes that kernels compute;
- what members make and change is dense, and what later ones read of it is views that a compiler sees through;
- a product and an attention read operands that were there before, so that no formula is computed once per use;
- a large product of a row with a matrix that lies by rows has a kernel of its own (``row_product``);
- an op shares a tensor with the region, or is small: what a region makes is there from its beginning.

A rule looks at windows and operators alone, so that regions are the same on every machine.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from tmmu.fusion.group import CHANGED, MADE, FusionGroup, window_bytes
from tmmu.fusion.open_region import OpenRegion, argument_values, window_of
from tmmu.fusion.operator_kinds import ATTENTION, MAKER, PRODUCT, kind_of
from tmmu.fusion.row_product import is_row_product
from tmmu.ir.graph import PERSISTENT_ROLES
from tmmu.ir.ids import OpId, ValueId
from tmmu.ir.program import GraphHalf, Program, ValueRef

MAX_MEMBERS: Final = 64
SMALL_BYTES: Final = 1 << 16
"""Of what an op reads and makes, for it to join a region that it shares nothing with, or to be fused alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Ops ``[first, last)``, the group that they are, and the program's values in the places of the group's bases.

    ``reads`` and ``changed`` as they are before the region, ``results`` as they are after it. ``writes``: all values
    that are there after it and are named elsewhere, with the new version of what it changes. ``all_reads``: also what
    the members read of buffers that they change in part.
    """

    first: OpId
    last: OpId
    group: FusionGroup
    reads: tuple[ValueId, ...]
    changed: tuple[ValueId, ...]
    results: tuple[ValueId, ...]
    writes: tuple[ValueId, ...]
    all_reads: tuple[ValueId, ...]


class RegionFinder:
    """Finds the regions of one program."""

    def __init__(self, program: Program) -> None:
        self.program, self.graph = program, program.graph
        self.last_use = _last_uses(program)

    def regions(self) -> tuple[Region, ...]:
        """In order; none that would gain nothing."""
        return tuple(self._regions())

    def halves(self, region: Region) -> tuple[Region, ...]:
        """The two halves of a region as regions of their own; without one that would gain nothing."""
        middle = OpId((region.first + region.last) // 2)
        halves = (self.region_of(region.first, middle), self.region_of(middle, region.last))
        return tuple(half for half in halves if half is not None)

    def _regions(self) -> Iterator[Region]:
        first, count = 0, len(self.graph.ops)
        while first < count:
            last = self._end_of(OpId(first))
            region = self.region_of(OpId(first), OpId(last))
            if region is not None:
                yield region
            first = max(last, first + 1)

    def region_of(self, first: OpId, last: OpId) -> Region | None:
        """These ops as a region; ``None`` for ops that are none, and for one that gains nothing alone."""
        region = OpenRegion(self.program, first)
        if first == last or any(not region.join(OpId(op)) for op in range(first, last)):
            return None
        return None if last - first == 1 and not self._gains_alone(first) else self._closed(region, last)

    def _end_of(self, first: OpId) -> int:
        region, op = OpenRegion(self.program, first), int(first)
        while op < len(self.graph.ops) and op - first < MAX_MEMBERS:
            if not self._belongs(region, OpId(op)) or not region.join(OpId(op)):
                break
            op += 1
        return self._without_makers(int(first), op)

    def _without_makers(self, first: int, last: int) -> int:
        """The end of a region without what it makes last, for the next one: of makers alone, all of them."""
        end = last
        while end > first and kind_of(self.program.calls[end - 1].operator) == MAKER:
            end -= 1
        return end if end > first else last

    def _gains_alone(self, op: OpId) -> bool:
        kind = kind_of(self.program.calls[op].operator)
        return kind in (PRODUCT, ATTENTION) or self._bytes_of(op) <= SMALL_BYTES

    def _belongs(self, region: OpenRegion, op: OpId) -> bool:
        """Whether an op goes on with a region: of one stage, on one side of the halves, near it or small."""
        graph, joint, calls = self.graph, self.program.joint, self.program.calls
        if op == region.first:
            return True
        if self._has_own_kernel(op) or self._has_own_kernel(region.first):
            return False
        is_other_half = joint is not None and op == joint.forward_ops
        if is_other_half or graph.ops.stage[op] != graph.ops.stage[region.first]:
            return False
        if calls[op].switches != calls[region.first].switches:
            return False
        buffers = {graph.values.buffer[value] for value in (*graph.ops.reads[op], *graph.ops.writes[op])}
        return not buffers.isdisjoint({*region.own_bases, *region.read_buffers}) or self._bytes_of(op) <= SMALL_BYTES

    def _has_own_kernel(self, op: OpId) -> bool:
        call = self.program.calls[op]
        if kind_of(call.operator) != PRODUCT or call.kwargs or not all(isinstance(a, ValueRef) for a in call.args):
            return False
        *bias, row, matrix = (window_of(self.graph, value) for value in argument_values(call))
        return is_row_product(call.operator, row, matrix, bias[0] if bias else None)

    def _bytes_of(self, op: OpId) -> int:
        graph = self.graph
        return sum(window_bytes(window_of(graph, value)) for value in {*graph.ops.reads[op], *graph.ops.writes[op]})

    def _closed(self, region: OpenRegion, last: OpId) -> Region | None:
        graph, inside = self.graph, range(region.first, last)
        buffer = graph.values.buffer
        written = [(op, value) for op in inside for value in graph.ops.writes[op]]
        last_writer = {buffer[value]: op for op, value in written}
        current = [value for op, value in written if last_writer[buffer[value]] == op]
        read_later = {value for value in current if self.last_use.get(value, -1) >= last}
        kept = {buffer[value] for value in read_later}
        kept |= {buffer[v] for v in current if graph.buffers.role[buffer[v]] in PERSISTENT_ROLES}
        results = {base for b, base in region.own_bases.items() if b in kept and region.bases[base].kind == MADE}
        bases = tuple(replace(base, is_result=index in results) for index, base in enumerate(region.bases))
        group = FusionGroup(bases=bases, members=tuple(region.members))
        if not group.results and not group.changed:
            return None
        named = {region.result_values[base] for base in (*group.results, *group.of_kind(CHANGED))}
        inner = {value for _, value in written}
        reads = dict.fromkeys(value for op in inside for value in graph.ops.reads[op] if value not in inner)
        return Region(
            first=region.first,
            last=last,
            group=group,
            reads=tuple(region.base_values[base] for base in group.reads),
            changed=tuple(region.base_values[base] for base in group.changed),
            results=tuple(region.result_values[base] for base in group.results),
            writes=tuple(value for value in current if value in read_later or value in named),
            all_reads=tuple(reads),
        )


def _last_uses(program: Program) -> dict[ValueId, int]:
    """By value, the last op that reads it; the number of ops for an output, and for what a half hands out."""
    graph, joint = program.graph, program.joint
    last: dict[ValueId, int] = {}
    for op, reads in enumerate(graph.ops.reads):
        last.update(dict.fromkeys((*reads, *graph.ops.saves[op]), op))
    halves: tuple[GraphHalf | None, ...] = () if joint is None else (joint.forward, joint.backward)
    outputs = [out for half in halves if half is not None for out in half.outputs if isinstance(out, ValueRef)]
    return last | dict.fromkeys((*graph.outputs, *(ValueId(out.value) for out in outputs)), len(graph.ops))
