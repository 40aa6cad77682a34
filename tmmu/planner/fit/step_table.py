"""The table of a step for the search of what to run again: rows, buffers, groups, gaps, costs. O(size of the graph)."""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from math import prod
from typing import Final

from tmmu.ir.call_text import TENSOR, CallText, decode_call, tag_count
from tmmu.ir.graph import DTYPE_BYTES, GRADIENT, PERSISTENT_ROLES, Graph
from tmmu.ir.ids import BufferId, OpId, ValueId
from tmmu.ir.plan import ArenaSpec
from tmmu.ir.rebuild import TWINS
from tmmu.ir.rewrite import ARGUMENT, RESULT
from tmmu.judge.rewrite.facts import computes_alone, has_same_bits, has_twin
from tmmu.planner.arenas import arena_of_role
from tmmu.planner.coalesce import touches_once
from tmmu.planner.fit.cells import Cells, StepCells
from tmmu.planner.pack.exact.jit import make_cells

FLOPS_PER_PICOSECOND: Final = 200
"""Of the roofline by which time is estimated: 200 TFLOP/s."""
PICOSECONDS_PER_16_BYTES: Final = 10
"""1.6 TB/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTable:
    """``cells`` number the buffers that are there during the step only; ``buffers``: their ids in the graph.

    ``droppable``: per gap, whether its buffer can be made again after it; ``time`` and ``flops`` of the whole step.
    ``op``: per row of the cells, its op.
    """

    graph: Graph
    cells: StepCells
    op: tuple[OpId, ...]
    buffers: tuple[BufferId, ...]
    droppable: tuple[bool, ...]
    last_use: tuple[bool, ...]
    time: int
    flops: int


def step_table(graph: Graph, arenas: Sequence[ArenaSpec], *, may_rerun: Sequence[bool] | None = None) -> StepTable:
    """The table of a legal graph with calls, whose ops run in the order of their ids.

    ``may_rerun``: per op, whether it may run again if what is known of its operator allows it; by default all may.
    """
    texts = _texts(graph)
    uses = _uses(graph)
    again = _rows_again(graph, texts, uses, may_rerun)
    groups = _usable_groups(_groups(again.writes, len(uses.buffers)), again, uses)
    is_output = set(uses.outputs)
    return StepTable(
        graph=graph,
        cells=_cells(graph, arenas, uses, groups, again),
        op=(*graph.ops.ids, *again.twins),
        buffers=uses.buffers,
        droppable=tuple(
            group >= 0 and uses.touch_row[gap] >= groups.rows[group][-1]
            for gap, group in enumerate(groups.of[buffer] for buffer in uses.touch_of)
        ),
        last_use=tuple(
            gap == uses.gaps[buffer][-1] and buffer not in is_output for gap, buffer in enumerate(uses.touch_of)
        ),
        time=sum(_time(graph, op) for op in graph.ops.ids),
        flops=sum(graph.notes.ops.flops),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Uses:
    """The buffers that are there during the step only, numbered, and per row those that it reads and writes.

    ``touch_of``, ``touch_row``: per gap, its buffer and row; ``gaps``: per buffer, its gaps; ``outputs``: sorted.
    """

    buffers: tuple[BufferId, ...]
    index: dict[BufferId, int]
    reads: list[list[int]]
    writes: list[list[int]]
    touches: list[list[int]]
    touch_of: list[int]
    touch_row: list[int]
    gaps: list[list[int]]
    outputs: list[int]

    def next_use(self) -> list[int]:
        """Per gap, the row after it; the number of rows where there is none."""
        found = [len(self.reads)] * len(self.touch_of)
        for row in self.gaps:
            for gap, following in pairwise(row):
                found[gap] = self.touch_row[following]
        return found


def _uses(graph: Graph) -> _Uses:
    buffers = tuple(b for b in graph.buffers.ids if graph.buffers.role[b] not in PERSISTENT_ROLES)
    index = {buffer: place for place, buffer in enumerate(buffers)}
    reads = [[index[b] for b in _buffers(graph, values) if b in index] for values in graph.ops.reads]
    writes = [[index[b] for b in _buffers(graph, values) if b in index] for values in graph.ops.writes]
    touches = [list(dict.fromkeys((*r, *w))) for r, w in zip(reads, writes, strict=True)]
    touch_of = list(chain(*touches))
    gaps: list[list[int]] = [[] for _ in buffers]
    for gap, buffer in enumerate(touch_of):
        gaps[buffer].append(gap)
    return _Uses(
        buffers=buffers,
        index=index,
        reads=reads,
        writes=writes,
        touches=touches,
        touch_of=touch_of,
        touch_row=[row for row, touched in enumerate(touches) for _ in touched],
        gaps=gaps,
        outputs=sorted({index[b] for b in _buffers(graph, graph.outputs) if b in index}),
    )


def _cells(
    graph: Graph,
    arenas: Sequence[ArenaSpec],
    uses: _Uses,
    groups: "_UsableGroups",
    again: "_RowsAgain",
) -> StepCells:
    rows = [*graph.ops.ids, *again.twins]
    reads = [*uses.reads, *(again.reads[row] for row in again.twins)]
    writes = [*uses.writes, *(again.writes[row] for row in again.twins)]
    kept = [again.kept[row] for row in rows]
    persistent = [[b for b in _buffers(graph, values) if b not in uses.index] for values in graph.ops.writes]
    takeovers = _takeovers(graph, uses.index)
    over = [[pair for pair in takeovers[op] if pair[0] in new] for op, new in zip(rows, writes, strict=True)]
    read_at, read_of = _columns(reads)
    write_at, write_of = _columns(writes)
    touch_at, touch_of = _columns(uses.touches)
    use_at, use_of = _columns(uses.gaps)
    group_at, group_rows = _columns([[again.row(row) for row in group] for group in groups.rows])
    kept_read_at, kept_read_of = _columns([[buffer for buffer, _ in row] for row in kept])
    kept_write_at, kept_write_of = _columns(persistent)
    over_at, over_new = _columns([[new for new, _ in row] for row in over])
    return StepCells(
        size=make_cells(_padded(graph, uses.buffers, arenas)),
        kind=make_cells([int(graph.buffers.role[b] == GRADIENT) for b in uses.buffers]),
        read_at=read_at, read_of=read_of, write_at=write_at, write_of=write_of,
        touch_at=touch_at, touch_of=touch_of, touch_row=make_cells(uses.touch_row),
        next_use=make_cells(uses.next_use()), use_at=use_at, use_of=use_of,
        group_of=make_cells(groups.of), group_at=group_at, group_rows=group_rows,
        kept_read_at=kept_read_at, kept_read_of=kept_read_of, kept_version=make_cells([v for _, v in chain(*kept)]),
        kept_write_at=kept_write_at, kept_write_of=kept_write_of,
        over_at=over_at, over_new=over_new, over_old=make_cells([old for _, old in chain(*over)]),
        outputs=make_cells(uses.outputs),
        row_time=make_cells([_time(graph, op) for op in rows]),
        row_flops=make_cells([graph.notes.ops.flops[op] for op in rows]),
    )  # fmt: skip


def _padded(graph: Graph, buffers: Sequence[BufferId], arenas: Sequence[ArenaSpec]) -> list[int]:
    """Bytes, rounded up to the alignment of the arena that the buffer is placed in."""
    alignment = {spec.name: spec.alignment for spec in arenas}
    steps = {role: alignment[arena_of_role(role) or ""] for role in {graph.buffers.role[b] for b in buffers}}
    return [-(-graph.buffers.bytes[b] // (step := steps[graph.buffers.role[b]])) * step for b in buffers]


def _columns(rows: Sequence[Sequence[int]]) -> tuple[Cells, Cells]:
    """Where each row begins, and all rows joined."""
    return make_cells([0, *accumulate(len(row) for row in rows)]), make_cells(list(chain(*rows)))


def _texts(graph: Graph) -> list[CallText]:
    assert graph.calls is not None
    texts = [decode_call(text) for text in graph.calls.texts]
    found = [texts[row] for row in graph.calls.call]
    return [text for text in found if text is not None]


def _buffers(graph: Graph, values: Iterable[ValueId]) -> list[BufferId]:
    """The buffers of values, each once, in their order."""
    return list(dict.fromkeys(graph.values.buffer[value] for value in values))


def _effect_buffers(graph: Graph, text: CallText, op: OpId) -> set[BufferId]:
    """The buffers that only a twin leaves alone."""
    assert graph.calls is not None
    twin = TWINS[text.operator] if has_twin(text, graph.target) else None
    kept = {place for what, place in twin.arguments if what == ARGUMENT} if twin else range(len(text.arguments))
    found, place = set[BufferId](), 0
    for argument, value in enumerate(text.arguments):
        count = tag_count(value, TENSOR)
        if argument not in kept:
            found.update(graph.values.buffer[v] for v in graph.calls.operands[op][place : place + count])
        place += count
    return found


def may_run_again(graph: Graph, text: CallText, op: OpId) -> bool:
    """Whether the op, or its twin, may run again with the same bits and no effects."""
    if graph.ops.stage[op] == "update" or not (computes_alone(text) or has_twin(text, graph.target)):
        return False
    if not has_same_bits(text, graph.target) or not _keeps_layout(graph, text, op):
        return False
    changed = {b for b in _buffers(graph, graph.ops.writes[op]) if graph.buffers.role[b] in PERSISTENT_ROLES}
    return changed <= _effect_buffers(graph, text, op)


def _keeps_layout(graph: Graph, text: CallText, op: OpId) -> bool:
    """Whether what runs again lays its result out alike: a twin of another operator does where rows are contiguous."""
    assert graph.calls is not None
    if computes_alone(text):
        return True
    values = graph.values
    windows = {(values.shape[value], values.stride[value]) for value in graph.calls.operands[op]}
    return all(
        stride == tuple(prod(shape[axis + 1 :]) for axis in range(len(shape))) or 0 in shape
        for shape, stride in windows
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _RowsAgain:
    """Per row, what it is when it runs again: whether it may, what it reads and writes during the step alone.

    ``kept``: the persistent buffers that it reads, and how often each was changed before. ``twins``: of rows that are
    other than at first, the row of the table that they then are, after those of the step.
    """

    may: list[bool]
    reads: list[list[int]]
    writes: list[list[int]]
    kept: list[list[tuple[BufferId, int]]]
    twins: dict[OpId, int]

    def row(self, row: int) -> int:
        """The row of the table that runs where this one runs again."""
        return self.twins.get(OpId(row), row)


def _rows_again(graph: Graph, texts: Sequence[CallText], uses: _Uses, may_rerun: Sequence[bool] | None) -> _RowsAgain:
    found = _RowsAgain(
        may=[(may_rerun is None or may_rerun[op]) and may_run_again(graph, texts[op], op) for op in graph.ops.ids],
        reads=list(uses.reads),
        writes=list(uses.writes),
        kept=_kept_reads(graph, texts, uses.index),
        twins={},
    )
    for op in graph.ops.ids:
        reread, written = _results_of_twin(graph, texts[op], op) if found.may[op] else ([], [])
        if reread:
            found.twins[op] = len(graph.ops) + len(found.twins)
            found.reads[op] = list(dict.fromkeys((*uses.reads[op], *(uses.index[b] for b in reread))))
            found.writes[op] = [uses.index[b] for b in written]
    return found


def _results_of_twin(graph: Graph, text: CallText, op: OpId) -> tuple[list[BufferId], list[BufferId]]:
    """The buffers of the results that a twin reads, and of those that it makes; none where it makes all."""
    assert graph.calls is not None
    if not has_twin(text, graph.target):
        return [], []
    twin, operands = TWINS[text.operator], graph.calls.operands[op]
    results = operands[len(operands) - sum(text.results) :]
    reread = [results[place] for what, place in twin.arguments if what == RESULT]
    return _buffers(graph, reread), _buffers(graph, [results[place] for place in twin.results])


def _groups(writes: Sequence[Sequence[int]], buffers: int) -> list[int]:
    """Per row, the smallest row with which it shares a written buffer, directly or through others."""
    root = list(range(len(writes)))

    def find(row: int) -> int:
        while root[row] != row:
            root[row] = root[root[row]]
            row = root[row]
        return row

    first = [-1] * buffers
    for row, written in enumerate(writes):
        for buffer in written:
            if first[buffer] < 0:
                first[buffer] = row
            else:
                low, high = sorted((find(first[buffer]), find(row)))
                root[high] = low
    return [find(row) for row in range(len(writes))]


@dataclass(frozen=True, slots=True)
class _UsableGroups:
    """Per buffer its group, -1 without; per group its rows."""

    of: list[int]
    rows: list[list[int]]


def _usable_groups(groups: Sequence[int], again: _RowsAgain, uses: _Uses) -> _UsableGroups:
    """Groups that may run again: all their rows may, no other row uses their buffers before the last of them, and what
    they read is changed by none of the rows that follow.
    """
    last_write = [-1] * len(uses.buffers)
    for row, written in enumerate(uses.writes):
        for buffer in written:
            last_write[buffer] = row
    members: dict[int, list[int]] = {}
    for row, group in enumerate(groups):
        members.setdefault(group, []).append(row)
    found = _UsableGroups([-1] * len(uses.buffers), [])
    for rows in members.values():
        own = {buffer for row in rows for buffer in again.writes[row]}
        users = {uses.touch_row[gap] for buffer in own for gap in uses.gaps[buffer]} - set(rows)
        final = all(last_write[b] <= row for row in rows for b in again.reads[row] if b not in own)
        if own and final and all(again.may[row] for row in rows) and all(row > rows[-1] for row in users):
            for buffer in own:
                found.of[buffer] = len(found.rows)
            found.rows.append(rows)
    return found


def _kept_reads(
    graph: Graph, texts: Sequence[CallText], index: Container[BufferId]
) -> list[list[tuple[BufferId, int]]]:
    """Per row, the persistent buffers that it reads when it runs again, and how often each was changed before."""
    version = [0] * len(graph.buffers)
    found = list[list[tuple[BufferId, int]]]()
    for op in graph.ops.ids:
        effects = _effect_buffers(graph, texts[op], op)
        row = [b for b in _buffers(graph, graph.ops.reads[op]) if b not in index and b not in effects]
        found.append([(b, version[b]) for b in row])
        for b in _buffers(graph, graph.ops.writes[op]):
            version[b] += 1
    return found


def _time(graph: Graph, op: OpId) -> int:
    """Picoseconds of the roofline."""
    values = graph.values
    touched: dict[BufferId, int] = {}
    for value in (*graph.ops.reads[op], *graph.ops.writes[op]):
        buffer = values.buffer[value]
        size = min(prod(values.shape[value]) * DTYPE_BYTES[values.dtype[value]], graph.buffers.bytes[buffer])
        touched[buffer] = max(touched.get(buffer, 0), size)
    return max(
        graph.notes.ops.flops[op] // FLOPS_PER_PICOSECOND, sum(touched.values()) * PICOSECONDS_PER_16_BYTES // 16
    )


def _takeovers(graph: Graph, index: dict[BufferId, int]) -> list[list[tuple[int, int]]]:
    """Per row, the pairs (buffer written, buffer read) that may share their bytes."""
    buffer_of, size = graph.values.buffer, graph.buffers.bytes
    found = []
    for op, pairs in zip(graph.ops.ids, graph.ops.overwrites, strict=True):
        row = []
        for written, read in pairs:
            new, old = buffer_of[written], buffer_of[read]
            if new in index and old in index and size[new] == size[old] and touches_once(graph, op, read):
                row.append((index[new], index[old]))
        found.append(row)
    return found
