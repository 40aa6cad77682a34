"""What holds of a step in every order of its ops: uses, costs, what may run again. O(size of the graph)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from math import prod
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tmmu.ir.call_text import TENSOR, CallText, decode_call, tag_count
from tmmu.ir.graph import DTYPE_BYTES, GRADIENT, PERSISTENT_ROLES, Graph
from tmmu.ir.ids import BufferId, OpId, ValueId
from tmmu.ir.plan import ArenaSpec
from tmmu.ir.rebuild import TWINS
from tmmu.ir.rewrite import ARGUMENT, RESULT
from tmmu.judge.rewrite.facts import computes_alone, has_same_bits, has_twin
from tmmu.planner.arenas import arena_of_role
from tmmu.planner.coalesce import touches_once
from tmmu.planner.order import dependence_edges

FLOPS_PER_PICOSECOND: Final = 200
"""Of the roofline by which time is estimated: 200 TFLOP/s."""
PICOSECONDS_PER_16_BYTES: Final = 10
"""1.6 TB/s."""

Ints: TypeAlias = npt.NDArray[np.int64]


class Ragged(NamedTuple):
    """Rows of integers of different lengths: row ``r`` is ``of[at[r]:at[r + 1]]``."""

    at: Ints
    of: Ints

    @classmethod
    def joined(cls, rows: Sequence[Sequence[int]]) -> "Ragged":
        """These rows."""
        at = np.fromiter(accumulate(map(len, rows), initial=0), dtype=np.int64, count=len(rows) + 1)
        return cls(at, np.fromiter(chain(*rows), dtype=np.int64, count=int(at[-1])))

    def row(self, row: int) -> list[int]:
        """One row."""
        result: list[int] = self.of[self.at[row] : self.at[row + 1]].tolist()
        return result

    def picked(self, rows: Ints) -> "Ragged":
        """Some of the rows, in this order."""
        lengths = (self.at[1:] - self.at[:-1])[rows]
        at = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(lengths, out=at[1:])
        places = np.arange(int(at[-1]), dtype=np.int64) + np.repeat(self.at[:-1][rows] - at[:-1], lengths)
        return Ragged(at, self.of[places])


@dataclass(frozen=True, slots=True, kw_only=True)
class RerunGroup:
    """Ops that may run again together, and the buffers that they then make.

    ``users``: the ops that use what several ops make, which no order may put between them; empty for one op.
    """

    ops: tuple[OpId, ...]
    makes: tuple[int, ...]
    users: tuple[OpId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """Buffers that are there during the step only are *cells*, numbered by ``buffers``.

    Rows of the columns are the ops of the graph, and after them those of ``twins``: what an op is that reads and writes
    other buffers when it runs again. ``kept_read``: the persistent buffers that a row then reads, ``kept_version``: how
    often each was changed before. ``touch`` and ``kept_write`` are of the ops alone. ``after``: the ops that have to
    come after each; ``alone``: whether an op only computes results from its arguments. ``time``, ``flops``: of all ops.
    """

    graph: Graph
    buffers: tuple[BufferId, ...]
    outputs: tuple[int, ...]
    size: Ints
    kind: Ints
    read: Ragged
    write: Ragged
    touch: Ragged
    kept_read: Ragged
    kept_version: Ragged
    kept_write: Ragged
    over_new: Ragged
    over_old: Ragged
    row_time: Ints
    row_flops: Ints
    twins: dict[OpId, int]
    groups: tuple[RerunGroup, ...]
    after: tuple[tuple[int, ...], ...]
    alone: tuple[bool, ...]
    time: int
    flops: int


def step_facts(graph: Graph, arenas: Sequence[ArenaSpec], *, may_rerun: Sequence[bool] | None = None) -> StepFacts:
    """Those of a legal graph with calls, whose ops run in the order of their ids.

    ``may_rerun``: per op, whether it may run again if what is known of its operator allows it; by default all may.
    """
    calls = _Calls.of(graph)
    uses = _Uses.of(graph)
    again = _again(graph, calls, uses, may_rerun)
    rows = [*graph.ops.ids, *again.twins]
    kept = _kept_reads(graph, calls, uses, again)
    takeovers = _takeovers(graph, uses.index)
    over = [[pair for pair in takeovers[op] if pair[0] in new] for op, new in zip(rows, again.all_writes, strict=True)]
    times = op_times(graph)
    return StepFacts(
        graph=graph,
        buffers=uses.buffers,
        outputs=tuple(sorted({uses.index[b] for b in buffers_of(graph, graph.outputs) if b in uses.index})),
        size=np.array(_padded(graph, uses.buffers, arenas), dtype=np.int64),
        kind=np.array([graph.buffers.role[b] == GRADIENT for b in uses.buffers], dtype=np.int64),
        read=Ragged.joined(again.all_reads),
        write=Ragged.joined(again.all_writes),
        touch=Ragged.joined(uses.touches),
        kept_read=Ragged.joined([[buffer for buffer, _ in kept[op]] for op in rows]),
        kept_version=Ragged.joined([[version for _, version in kept[op]] for op in rows]),
        kept_write=Ragged.joined(uses.kept_writes),
        over_new=Ragged.joined([[new for new, _ in row] for row in over]),
        over_old=Ragged.joined([[old for _, old in row] for row in over]),
        row_time=np.array([times[op] for op in rows], dtype=np.int64),
        row_flops=np.array([graph.notes.ops.flops[op] for op in rows], dtype=np.int64),
        twins=again.twins,
        groups=tuple(_groups(uses, again)),
        after=tuple(map(tuple, dependence_edges(graph, graph.ops.ids))),
        alone=tuple(calls.alone[row] and bool(graph.ops.writes[op]) for op, row in enumerate(calls.row)),
        time=sum(times),
        flops=sum(graph.notes.ops.flops),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Calls:
    """The texts of a graph, of each what is known of its operator, and per op the place of its text."""

    texts: list[CallText]
    alone: list[bool]
    twin: list[bool]
    same_bits: list[bool]
    row: tuple[int, ...]

    @classmethod
    def of(cls, graph: Graph) -> "_Calls":
        assert graph.calls is not None
        decoded = [decode_call(text) for text in graph.calls.texts]
        texts = [text for text in decoded if text is not None]
        assert len(texts) == len(decoded)  # the graph is legal
        return cls(
            texts=texts,
            alone=[computes_alone(text) for text in texts],
            twin=[has_twin(text, graph.target) for text in texts],
            same_bits=[has_same_bits(text, graph.target) for text in texts],
            row=graph.calls.call,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Uses:
    """The cells that each op reads, writes, and uses at all; the persistent buffers that it writes."""

    buffers: tuple[BufferId, ...]
    index: dict[BufferId, int]
    reads: list[list[int]]
    writes: list[list[int]]
    touches: list[list[int]]
    kept_writes: list[list[BufferId]]

    @classmethod
    def of(cls, graph: Graph) -> "_Uses":
        buffers = tuple(b for b in graph.buffers.ids if graph.buffers.role[b] not in PERSISTENT_ROLES)
        index = {buffer: place for place, buffer in enumerate(buffers)}
        written = [buffers_of(graph, values) for values in graph.ops.writes]
        reads = [[index[b] for b in buffers_of(graph, values) if b in index] for values in graph.ops.reads]
        writes = [[index[b] for b in row if b in index] for row in written]
        return cls(
            buffers=buffers,
            index=index,
            reads=reads,
            writes=writes,
            touches=[list(dict.fromkeys((*r, *w))) for r, w in zip(reads, writes, strict=True)],
            kept_writes=[[b for b in row if b not in index] for row in written],
        )


def buffers_of(graph: Graph, values: Iterable[ValueId]) -> list[BufferId]:
    """The buffers of values, each once, in their order."""
    buffer = graph.values.buffer
    return list(dict.fromkeys([buffer[value] for value in values]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Again:
    """Per op, whether it may run again; what rows read and write then, those of ``twins`` after those of ops."""

    may: list[bool]
    effects: dict[OpId, set[BufferId]]
    """Of the ops that have a twin, the buffers that it leaves alone."""
    twins: dict[OpId, int]
    all_reads: list[list[int]]
    all_writes: list[list[int]]

    def row(self, op: OpId) -> int:
        """The row that runs where this op runs again."""
        return self.twins.get(op, op)


def _again(graph: Graph, calls: _Calls, uses: _Uses, may_rerun: Sequence[bool] | None) -> _Again:
    effects = {op: _effect_buffers(graph, calls.texts[row], op) for op, row in enumerate(calls.row) if calls.twin[row]}
    may = [
        (may_rerun is None or may_rerun[op]) and _may_run_again(graph, calls, op, effects.get(op, set()))
        for op in graph.ops.ids
    ]
    again = _Again(
        may=may,
        effects={OpId(op): buffers for op, buffers in effects.items()},
        twins={},
        all_reads=list(uses.reads),
        all_writes=list(uses.writes),
    )
    for op in again.effects:
        reread, written = _results_of_twin(graph, calls.texts[calls.row[op]], op) if may[op] else ([], [])
        if reread:
            again.twins[op] = len(again.all_reads)
            again.all_reads.append(list(dict.fromkeys((*uses.reads[op], *(uses.index[b] for b in reread)))))
            again.all_writes.append([uses.index[b] for b in written])
    return again


def _effect_buffers(graph: Graph, text: CallText, op: int) -> set[BufferId]:
    """The buffers that a twin leaves alone."""
    assert graph.calls is not None
    passed = {place for what, place in TWINS[text.operator].arguments if what == ARGUMENT}
    buffers, place = set[BufferId](), 0
    for argument, value in enumerate(text.arguments):
        count = tag_count(value, TENSOR)
        if argument not in passed:
            buffers.update(graph.values.buffer[v] for v in graph.calls.operands[op][place : place + count])
        place += count
    return buffers


def _may_run_again(graph: Graph, calls: _Calls, op: OpId, effects: set[BufferId]) -> bool:
    """Whether the op, or its twin, may run again with the same bits and no effects."""
    row = calls.row[op]
    if graph.ops.stage[op] == "update" or not calls.same_bits[row] or not (calls.alone[row] or calls.twin[row]):
        return False
    if not calls.alone[row] and not _keeps_layout(graph, op):
        return False
    changed = {b for b in buffers_of(graph, graph.ops.writes[op]) if graph.buffers.role[b] in PERSISTENT_ROLES}
    return changed <= effects


def _keeps_layout(graph: Graph, op: OpId) -> bool:
    """Whether a twin of another operator lays its result out alike: it does where rows are contiguous."""
    assert graph.calls is not None
    values = graph.values
    windows = {(values.shape[value], values.stride[value]) for value in graph.calls.operands[op]}
    return all(
        stride == tuple(prod(shape[axis + 1 :]) for axis in range(len(shape))) or 0 in shape
        for shape, stride in windows
    )


def _results_of_twin(graph: Graph, text: CallText, op: OpId) -> tuple[list[BufferId], list[BufferId]]:
    """The buffers of the results that a twin reads, and of those that it makes; none where it reads none."""
    assert graph.calls is not None
    twin, operands = TWINS[text.operator], graph.calls.operands[op]
    results = operands[len(operands) - sum(text.results) :]
    reread = [results[place] for what, place in twin.arguments if what == RESULT]
    return buffers_of(graph, reread), buffers_of(graph, [results[place] for place in twin.results])


def _kept_reads(graph: Graph, calls: _Calls, uses: _Uses, again: _Again) -> list[list[tuple[BufferId, int]]]:
    """Per op, the persistent buffers that it reads when it runs again, and how often each was changed before.

    Every order that keeps the edges has the same versions.
    """
    version = [0] * len(graph.buffers)
    rows = list[list[tuple[BufferId, int]]]()
    for op in graph.ops.ids:
        effects = again.effects[op] if calls.twin[calls.row[op]] else ()
        row = [b for b in buffers_of(graph, graph.ops.reads[op]) if b not in uses.index and b not in effects]
        rows.append([(b, version[b]) for b in row])
        for b in uses.kept_writes[op]:
            version[b] += 1
    return rows


def _roots(writes: Sequence[Sequence[int]], cells: int) -> list[int]:
    """Per op, the smallest op with which it shares a written cell, directly or through others."""
    root = list(range(len(writes)))

    def find(row: int) -> int:
        while root[row] != row:
            root[row] = root[root[row]]
            row = root[row]
        return row

    first = [-1] * cells
    for row, written in enumerate(writes):
        for cell in written:
            if first[cell] < 0:
                first[cell] = row
            else:
                low, high = sorted((find(first[cell]), find(row)))
                root[high] = low
    return [find(row) for row in range(len(writes))]


def _groups(uses: _Uses, again: _Again) -> Iterator[RerunGroup]:
    """Those whose ops all may run again, and read what none of the ops that follow changes."""
    last_write, users = [-1] * len(uses.buffers), list[list[OpId]]([] for _ in uses.buffers)
    for op, (touched, written) in enumerate(zip(uses.touches, uses.writes, strict=True)):
        for cell in written:
            last_write[cell] = op
        for cell in touched:
            users[cell].append(OpId(op))
    writes = again.all_writes[: len(uses.writes)]
    for op, row in again.twins.items():
        writes[op] = again.all_writes[row]
    members: dict[int, list[OpId]] = {}
    for op, root in enumerate(_roots(writes, len(uses.buffers))):
        members.setdefault(root, []).append(OpId(op))
    for ops in members.values():
        makes = tuple(dict.fromkeys(cell for op in ops for cell in writes[op]))
        if makes and all(again.may[op] for op in ops):
            reads = [(op, cell) for op in ops for cell in again.all_reads[again.row(op)] if cell not in makes]
            others = dict.fromkeys(user for cell in makes for user in users[cell] if user not in ops)
            # Of one op, edges say which users come first: one that wrote what it changes, and makes it no second time.
            is_first = len(ops) > 1 or all(user > ops[0] for user in others)
            if is_first and all(last_write[cell] <= op for op, cell in reads):
                yield RerunGroup(ops=tuple(ops), makes=makes, users=tuple(others) if len(ops) > 1 else ())


def _padded(graph: Graph, buffers: Sequence[BufferId], arenas: Sequence[ArenaSpec]) -> list[int]:
    """Bytes, rounded up to the alignment of the arena that the buffer is placed in."""
    alignment = {spec.name: spec.alignment for spec in arenas}
    steps = {role: alignment[arena_of_role(role) or ""] for role in {graph.buffers.role[b] for b in buffers}}
    return [-(-graph.buffers.bytes[b] // (step := steps[graph.buffers.role[b]])) * step for b in buffers]


def op_times(graph: Graph) -> list[int]:
    """Per op, picoseconds of the roofline: its operations, or the bytes that it touches.

    Of what a part leaves alone beside its own nothing is touched.
    """
    values = graph.values
    assert graph.calls is not None
    shapes = zip(values.shape, values.dtype, values.buffer, strict=True)
    size = [min(prod(shape) * DTYPE_BYTES[dtype], graph.buffers.bytes[buffer]) for shape, dtype, buffer in shapes]
    times = []
    for op in graph.ops.ids:
        touched: dict[BufferId, int] = {}
        for value in graph.calls.operands[op] or (*graph.ops.reads[op], *graph.ops.writes[op]):
            buffer = values.buffer[value]
            touched[buffer] = max(touched.get(buffer, 0), size[value])
        moved = sum(touched.values()) * PICOSECONDS_PER_16_BYTES // 16
        times.append(max(graph.notes.ops.flops[op] // FLOPS_PER_PICOSECOND, moved))
    return times


def _takeovers(graph: Graph, index: dict[BufferId, int]) -> list[list[tuple[int, int]]]:
    """Per op, the pairs (cell written, cell read) that may share their bytes."""
    buffer_of, size = graph.values.buffer, graph.buffers.bytes
    rows = []
    for op, pairs in zip(graph.ops.ids, graph.ops.overwrites, strict=True):
        row = []
        for written, read in pairs:
            new, old = buffer_of[written], buffer_of[read]
            if new in index and old in index and size[new] == size[old] and touches_once(graph, op, read):
                row.append((index[new], index[old]))
        rows.append(row)
    return rows
