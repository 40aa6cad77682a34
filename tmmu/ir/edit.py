"""Editing a program: graph, calls and joint graph change together, and ids stay positions.

Three edits serve rewrites: keep some ops, insert ops, read other values. Each gives a new program in which

- ops keep their relative order, and the call at a position is the call of the op there;
- a written value stays where anything names it, where the call returns it, and where without it the op would write
  fewer bytes; a buffer that ops make stays while a value lies on it; what is persistent always stays;
- the halves hand out the same outputs after the same ops.

An edit takes away the calls' columns of the graph, which ``describe_calls`` writes again from ``Program.calls``.
No edit decides whether the result means the same: passes declare that (``tmmu.passes.pipeline``), and the rules of
``tmmu.judge.rules`` check that it is legal. Linear in the program; an edit that changes nothing returns its argument.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tmmu.errors import InternalError
from tmmu.ir.graph import PERSISTENT_ROLES, Buffers, Graph, OpNotes, Ops, Overwrite, Values
from tmmu.ir.ids import BufferId, OpId, ValueId
from tmmu.ir.program import Call, GraphHalf, JointGraph, Output, OutputDelivery, Program, ValueRef, map_refs
from tmmu.ir.windows import windows, writers

T = TypeVar("T")
Table = TypeVar("Table", Buffers, Values, Ops, OpNotes)


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferRow:
    """A buffer to add: ``bytes`` and role."""

    bytes: int
    role: str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueRow:
    """A value to add: a window on a buffer that exists or is added; ``offset`` in bytes, the others in elements."""

    buffer: BufferId
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRow:
    """An op to insert before the op that is ``before`` now; ``len(graph.ops)`` for the end."""

    before: OpId
    target: str
    reads: tuple[ValueId, ...]
    writes: tuple[ValueId, ...]
    call: Call
    stage: str = "forward"
    overwrites: tuple[Overwrite, ...] = ()
    saves: tuple[ValueId, ...] = ()
    recompute: bool = False
    phase: str = "unknown"
    modality: str = "unknown"
    flops: int = 0
    module: str = ""
    source: str = ""


def keep_ops(program: Program, op_ids: Iterable[OpId]) -> Program:
    """The program of these ops alone, with the values and buffers that they still need.

    Errors: ``INTERNAL`` where an op stays that reads what a dropped op writes.
    """
    ops = sorted(set(op_ids))
    if len(ops) == len(program.graph.ops):
        return program
    graph = program.graph
    named = _named_values(program, ops)
    writer, stays = writers(graph), set(ops)
    lost = [value for value in named if writer[value] >= 0 and writer[value] not in stays]
    if lost:
        raise InternalError(f"value {lost[0]} is needed, and the op that writes it is dropped")
    values = _remaining_values(program, stays, named, writer)
    return _select(program, ops, values, _remaining_buffers(graph, values))


def insert_ops(
    program: Program, rows: Sequence[OpRow], *, values: Sequence[ValueRow] = (), buffers: Sequence[BufferRow] = ()
) -> Program:
    """The program with these ops as well; rows at one place keep their order.

    Added values and buffers take the ids after the last one, in order, and rows name them so.
    """
    if not rows and not values and not buffers:
        return program
    wide = _with_values(program.graph, values, buffers)
    at_end = _with_ops(wide, rows)
    count = len(program.graph.ops)
    order = sorted(range(count + len(rows)), key=lambda op: (op, 1) if op < count else (rows[op - count].before, 0))
    calls = (*program.calls, *(row.call for row in rows))
    longer = Program(graph=at_end, calls=calls, joint=_shift_joint(program.joint, rows), routings=program.routings)
    return _reorder(longer, order)


def replace_values(program: Program, replacement: Mapping[ValueId, ValueId], *, since: int = 0) -> Program:
    """The program in which ops from ``since`` on, and outputs, name the mapped values in place of the keys.

    What an op writes or returns is not renamed; of values that a row names twice afterwards one stays.
    """
    if not replacement:
        return program
    graph, ops = program.graph, program.graph.ops

    def new(value: ValueId) -> ValueId:
        return replacement.get(value, value)

    def rename_column(column: Sequence[Sequence[ValueId]]) -> tuple[tuple[ValueId, ...], ...]:
        return (*map(tuple, column[:since]), *(_distinct(map(new, values)) for values in column[since:]))

    pairs = (*ops.overwrites[:since], *(tuple((w, new(r)) for w, r in row) for row in ops.overwrites[since:]))
    edited = replace(ops, reads=rename_column(ops.reads), saves=rename_column(ops.saves), overwrites=pairs)
    outputs = _distinct(map(new, graph.outputs))
    calls = (*program.calls[:since], *(_call_with_refs(call, new, results=False) for call in program.calls[since:]))
    joint = None if program.joint is None else _joint_with_refs(program.joint, new)
    return Program(
        graph=replace(graph, ops=edited, outputs=outputs, calls=None),
        calls=calls,
        joint=joint,
        routings=program.routings,
    )


def with_columns(program: Program, **columns: tuple[object, ...]) -> Program:
    """The program with whole columns of its ops replaced, each as long as before."""
    return replace(program, graph=replace(program.graph, ops=replace(program.graph.ops, **columns)))  # type: ignore[arg-type]


def _named_values(program: Program, ops: Sequence[int]) -> set[ValueId]:
    """What inputs, outputs, halves and these ops name, other than by writing it alone."""
    graph = program.graph
    named = {*graph.inputs, *graph.outputs, *_joint_values(program.joint)}
    for op in ops:
        named.update(graph.ops.reads[op], graph.ops.saves[op])
        named.update(value for pair in graph.ops.overwrites[op] for value in pair)
        named.update(value for value in program.calls[op].results if value is not None)
    return {ValueId(value) for value in named}


def _joint_values(joint: JointGraph | None) -> Iterator[int]:
    halves = () if joint is None else (joint.forward, joint.backward)
    for half in halves:
        yield from (out.value for out in (half.outputs if half is not None else ()) if isinstance(out, ValueRef))


def _remaining_values(program: Program, stays: set[OpId], named: set[ValueId], writer: Sequence[int]) -> list[ValueId]:
    """All values but those that only dropped ops named, and whose bytes their own op writes in any case."""
    ops = program.graph.ops
    doubtful = {
        value
        for op in range(len(ops))
        if op not in stays
        for value in (*ops.reads[op], *ops.saves[op], *ops.writes[op])
        if value not in named
    }
    covered = _values_without_cover(program.graph, doubtful, writer, stays)
    return [ValueId(value) for value in range(len(program.graph.values)) if value not in doubtful or value in covered]


def _values_without_cover(
    graph: Graph, doubtful: set[ValueId], writer: Sequence[int], stays: set[OpId]
) -> set[ValueId]:
    """Those that must stay all the same: no other value of their op covers the bytes that they say are written."""
    ranges, buffer = windows(graph), graph.values.buffer
    needed: set[ValueId] = set()
    for value in sorted(doubtful):
        op = writer[value]
        if op not in stays:
            continue
        low, high = ranges[value]
        others = (v for v in graph.ops.writes[op] if v not in doubtful or v in needed)
        if not any(buffer[v] == buffer[value] and ranges[v][0] <= low and high <= ranges[v][1] for v in others):
            needed.add(value)
    return needed


def _remaining_buffers(graph: Graph, values: Sequence[ValueId]) -> list[BufferId]:
    """Persistent ones, those with a value, and those that never had one."""
    before, after = set(graph.values.buffer), {graph.values.buffer[value] for value in values}
    return [
        BufferId(buffer)
        for buffer, role in enumerate(graph.buffers.role)
        if buffer in after or buffer not in before or role in PERSISTENT_ROLES
    ]


def _select(program: Program, ops: Sequence[OpId], values: Sequence[ValueId], buffers: Sequence[BufferId]) -> Program:
    """The rows that stay, under new ids; what they name stays too."""
    graph = program.graph
    value_ids = {old: ValueId(new) for new, old in enumerate(values)}
    buffer_ids = {old: BufferId(new) for new, old in enumerate(buffers)}
    table = _rows(graph.values, values)
    selected = replace(
        graph,
        buffers=_rows(graph.buffers, buffers),
        values=replace(table, buffer=tuple(buffer_ids[buffer] for buffer in table.buffer)),
        ops=_rename_values(_rows(graph.ops, ops), value_ids),
        inputs=tuple(value_ids[value] for value in graph.inputs),
        outputs=tuple(value_ids[value] for value in graph.outputs),
        notes=replace(graph.notes, buffers=_pick(graph.notes.buffers, buffers), ops=_rows(graph.notes.ops, ops)),
        calls=None,
    )
    joint = program.joint
    if joint is not None:
        joint = _joint_with_refs(_joint_at(joint, _counts_before(ops, len(graph.ops))), value_ids.__getitem__)
    calls = tuple(_call_with_refs(program.calls[op], value_ids.__getitem__) for op in ops)
    return Program(graph=selected, calls=calls, joint=joint, routings=program.routings)


def _reorder(program: Program, order: Sequence[int]) -> Program:
    """The same rows of ops in another order; the joint graph names positions of that order already."""
    graph = program.graph
    ops, notes = _rows(graph.ops, order), replace(graph.notes, ops=_rows(graph.notes.ops, order))
    return replace(program, graph=replace(graph, ops=ops, notes=notes, calls=None), calls=_pick(program.calls, order))


def _with_values(graph: Graph, values: Sequence[ValueRow], buffers: Sequence[BufferRow]) -> Graph:
    return replace(
        graph,
        values=_append_rows(graph.values, values),
        buffers=_append_rows(graph.buffers, buffers),
        notes=replace(graph.notes, buffers=(*graph.notes.buffers, *(row.name for row in buffers))),
    )


def _with_ops(graph: Graph, rows: Sequence[OpRow]) -> Graph:
    notes = replace(graph.notes, ops=_append_rows(graph.notes.ops, rows))
    return replace(graph, ops=_append_rows(graph.ops, rows), notes=notes)


def _shift_joint(joint: JointGraph | None, rows: Sequence[OpRow]) -> JointGraph | None:
    """The joint graph after the insertion. What is inserted where a half ends belongs to the half of its stage."""
    if joint is None:
        return None
    forward_end = joint.forward_ops
    ahead = sum(row.before < forward_end or (row.before == forward_end and row.stage == "forward") for row in rows)

    def shift_half(half: GraphHalf | None) -> GraphHalf | None:
        return half and _deliveries_at(half, lambda after: after + sum(row.before < after for row in rows))

    forward = shift_half(joint.forward) or joint.forward
    return replace(joint, forward_ops=forward_end + ahead, forward=forward, backward=shift_half(joint.backward))


def _joint_at(joint: JointGraph, count_before: Sequence[int]) -> JointGraph:
    forward = _deliveries_at(joint.forward, count_before.__getitem__)
    backward = joint.backward and _deliveries_at(joint.backward, count_before.__getitem__)
    return replace(joint, forward_ops=count_before[joint.forward_ops], forward=forward, backward=backward)


def _deliveries_at(half: GraphHalf, new_position: Callable[[int], int]) -> GraphHalf:
    return replace(
        half, deliveries=tuple(OutputDelivery(after=new_position(d.after), outputs=d.outputs) for d in half.deliveries)
    )


def _counts_before(ops: Sequence[OpId], total: int) -> list[int]:
    """Per old position, 0 to ``total``, how many of the sorted ``ops`` stand before it."""
    stays, counts = set(ops), [0]
    for op in range(total):
        counts.append(counts[-1] + (op in stays))
    return counts


def _call_with_refs(call: Call, new: Callable[[ValueId], ValueId], *, results: bool = True) -> Call:
    def rename(ref: ValueRef) -> ValueRef:
        return replace(ref, value=new(ValueId(ref.value)))

    def result(value: int | None) -> int | None:
        return None if value is None else new(ValueId(value))

    return replace(
        call,
        args=map_refs(call.args, rename),
        kwargs=tuple((key, map_refs(argument, rename)) for key, argument in call.kwargs),
        results=tuple(map(result, call.results)) if results else call.results,
    )


def _joint_with_refs(joint: JointGraph, new: Callable[[ValueId], ValueId]) -> JointGraph:
    def rename_output(output: Output) -> Output:
        return replace(output, value=new(ValueId(output.value))) if isinstance(output, ValueRef) else output

    forward = replace(joint.forward, outputs=tuple(map(rename_output, joint.forward.outputs)))
    backward = joint.backward and replace(joint.backward, outputs=tuple(map(rename_output, joint.backward.outputs)))
    return replace(joint, forward=forward, backward=backward)


def _rename_values(ops: Ops, new: Mapping[ValueId, ValueId]) -> Ops:
    """Ops of a selection. Only writes may name what went: a window that nobody reads and another one covers."""
    return replace(
        ops,
        reads=tuple(tuple(new[value] for value in reads) for reads in ops.reads),
        writes=tuple(tuple(new[value] for value in writes if value in new) for writes in ops.writes),
        saves=tuple(tuple(new[value] for value in saves) for saves in ops.saves),
        overwrites=tuple(tuple((new[written], new[read]) for written, read in pairs) for pairs in ops.overwrites),
    )


def _rows(table: Table, ids: Sequence[int]) -> Table:
    """These rows of a table of columns, in this order."""
    return replace(table, **{column: _pick(getattr(table, column), ids) for column in type(table).__slots__})


def _append_rows(table: Table, rows: Sequence[object]) -> Table:
    """The table with more rows, whose attributes are called as its columns are."""
    return replace(table, **{column: _cells(table, rows, column) for column in type(table).__slots__})


def _cells(table: object, rows: Sequence[object], column: str) -> tuple[Any, ...]:
    return (*getattr(table, column), *(getattr(row, column) for row in rows))


def _pick(column: Sequence[T], ids: Sequence[int]) -> tuple[T, ...]:
    return tuple(column[index] for index in ids)


def _distinct(values: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(values))
