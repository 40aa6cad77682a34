"""The fused program: regions of ops in which each is one op now, judged against the program that it comes from."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tmmu.fusion.call_form import KernelForm, scratch_places
from tmmu.fusion.fused_operators import fused_operator, group_of, is_fused
from tmmu.fusion.group import FusionGroup
from tmmu.fusion.regions import Region, RegionFinder
from tmmu.ir.edit import BufferRow, OpRow, ValueRow, insert_ops, keep_ops, replace_values
from tmmu.ir.fault import Fault
from tmmu.ir.graph import SCRATCH, Graph
from tmmu.ir.ids import BufferId, OpId, ValueId
from tmmu.ir.program import Call, Program, ValueRef
from tmmu.passes.pipeline import CALLS, DESCRIBED, LABELS, LIVE, OVERWRITES, PASSES, SAVES, Pass, run_passes

FormOf = Callable[[FusionGroup], KernelForm | None]
"""What the kernel of a group is called with; ``None`` for a group that has no kernel."""


def fuse_program(program: Program, form_of: FormOf, *, apart: Container[str] = ()) -> Program:
    """The program with a fused op in place of each region that has a kernel. Passes run again on what came out.

    A region that has none, or is of a group of ``apart`` by its digest, is cut in halves, and these again.
    Errors: ``INTERNAL`` where a fused op is not its region.
    """
    live = without_dead_ops(program)
    finder = RegionFinder(live)
    return made_of(program, insert_regions(live, kernel_regions(finder, finder.regions(), form_of, apart=apart)))


def without_dead_ops(program: Program) -> Program:
    """The program without ops that nobody needs: a rewritten one may have some, whose results all run again."""
    if program.base is None:
        return program
    # Of a rewritten program several calls have one origin, by which the pass is held against its promise.
    program = replace(program, calls=tuple(replace(call, origin=op) for op, call in enumerate(program.calls)))
    return run_passes(program, [row for row in PASSES if row.name == "eliminate_dead_ops"], (CALLS,))


def made_of(program: Program, fused: Program) -> Program:
    """The fused program with the base of a rewritten one; ``program`` itself where nothing of it is fused."""
    if not any(is_fused(call.operator) for call in fused.calls):
        return program
    base = program.base
    return fused if base is None else replace(fused, base=replace(base, rewritten=program.graph))


def kernel_regions(
    finder: RegionFinder, regions: Iterable[Region], form_of: FormOf, *, apart: Container[str] = ()
) -> list[tuple[Region, KernelForm]]:
    """Those of the regions, and of their halves, that have a kernel, in order, with its form."""
    return [row for region in regions for row in _with_kernels(finder, region, form_of, apart)]


def insert_regions(program: Program, regions: Sequence[tuple[Region, KernelForm]]) -> Program:
    """The program with a fused op in place of each of these regions."""
    if not regions:
        return program
    fuse = Pass(
        name="fuse",
        run=partial(_insert_fused, regions=regions),
        meaning=_covers_once,
        needs=(CALLS, LIVE),
        gives=(LIVE,),
        ends=(SAVES, OVERWRITES, LABELS, DESCRIBED),
    )
    later = [row for row in PASSES if row.name != "eliminate_dead_ops"]
    return run_passes(program, (fuse, *later), (CALLS, LIVE))


def _with_kernels(
    finder: RegionFinder, region: Region, form_of: FormOf, apart: Container[str]
) -> Iterator[tuple[Region, KernelForm]]:
    form = None if region.group.digest in apart else form_of(region.group)
    if form is not None:
        yield region, form
    elif region.last - region.first > 1:
        for half in finder.halves(region):
            yield from _with_kernels(finder, half, form_of, apart)


def _insert_fused(program: Program, regions: Sequence[tuple[Region, KernelForm]]) -> Program:
    graph = program.graph
    values: list[ValueRow] = []
    buffers: list[BufferRow] = []
    rows: list[OpRow] = []
    renamed: dict[ValueId, ValueId] = {}
    dropped: set[int] = set()
    for region, form in regions:
        written = {value: ValueId(len(graph.values) + len(values) + k) for k, value in enumerate(region.writes)}
        values += [_value_row(program, value) for value in region.writes]
        pieces: list[ValueId] = []
        _, size = scratch_places(form)
        if size:
            pieces.append(ValueId(len(graph.values) + len(values)))
            buffer = BufferId(len(graph.buffers) + len(buffers))
            buffers.append(BufferRow(bytes=size, role=SCRATCH, name=f"scratch:{region.group.name}"))
            values.append(ValueRow(buffer=buffer, offset=0, shape=(size,), stride=(1,), dtype="uint8"))
        rows.append(_op_row(program, region, form, written, pieces))
        renamed |= written
        dropped.update(range(region.first, region.last))
    longer = insert_ops(program, rows, values=values, buffers=buffers)
    first_of = {row.before for row in rows}
    kept: list[OpId] = []
    place = 0
    for op in range(len(graph.ops)):
        if op in first_of:
            kept.append(OpId(place))
            place += 1
        if op not in dropped:
            kept.append(OpId(place))
        place += 1
    return keep_ops(replace_values(longer, renamed), kept)


def _value_row(program: Program, value: ValueId) -> ValueRow:
    values = program.graph.values
    return ValueRow(
        buffer=values.buffer[value],
        offset=values.offset[value],
        shape=values.shape[value],
        stride=values.stride[value],
        dtype=values.dtype[value],
    )


def _op_row(
    program: Program, region: Region, form: KernelForm, written: Mapping[ValueId, ValueId], pieces: Sequence[ValueId]
) -> OpRow:
    graph, notes = program.graph, program.graph.notes.ops
    inside = range(region.first, region.last)
    operator = fused_operator(region.group)
    call = Call(
        operator=operator,
        args=(
            tuple(ValueRef(value) for value in region.reads),
            tuple(ValueRef(value) for value in region.changed),
            (scratch_places(form)[1],) if pieces else (),
        ),
        kwargs=(),
        results=(*(written[value] for value in region.results), *pieces),
        sequence=program.calls[region.first].sequence,
        origin=program.calls[region.first].origin,
        switches=program.calls[region.first].switches,
    )
    return OpRow(
        before=region.first,
        target=str(operator),
        reads=region.all_reads,
        writes=(*written.values(), *pieces),
        call=call,
        stage=graph.ops.stage[region.first],
        flops=sum(notes.flops[op] for op in inside),
        module=notes.module[region.last - 1],
        source=notes.source[region.last - 1],
    )


def _covers_once(before: Program, after: Program) -> Iterator[Fault]:
    """Whether each op of the old program is once in the new one, in order, as itself or as a member of its group.

    What a fused op reads and writes is what its members read of others and leave behind; all else is its scratch.
    """
    position, buffers = 0, dict[int, int]()
    for op, call in enumerate(after.calls):
        members = group_of(call.operator).members if is_fused(call.operator) else (call,)
        old = range(position, position + len(members))
        position = old.stop
        targets = [str(member.operator) for member in members]
        if targets != [str(row.operator) for row in before.calls[old.start : old.stop]]:
            yield Fault(rule="fused", what=f"op {op} is {targets[0]} in place of another one", op=op)
            return
        yield from _touches_the_same(before, after, old, op, buffers)
    if position != len(before.calls):
        yield Fault(rule="fused", what=f"{len(before.calls) - position} ops are in no op of the fused program")


def _touches_the_same(before: Program, after: Program, old: range, op: int, buffers: dict[int, int]) -> Iterator[Fault]:
    """Whether an op reads and writes the windows that the ops ``old`` do; ``buffers``: the new one by the old."""
    graph, base = after.graph, before.graph
    inner = {value for row in old for value in base.ops.writes[row]}
    reads = list(dict.fromkeys(value for row in old for value in base.ops.reads[row] if value not in inner))
    writes = {_window(base, value) for row in old for value in base.ops.writes[row]}
    if len(reads) != len(graph.ops.reads[op]):
        yield Fault(rule="fused", what=f"op {op} reads {len(graph.ops.reads[op])} values of {len(reads)}", op=op)
        return
    for value, read in zip(reads, graph.ops.reads[op], strict=True):
        new = buffers.setdefault(base.values.buffer[value], graph.values.buffer[read])
        if new != graph.values.buffer[read] or _window(base, value)[1:] != _window(graph, read)[1:]:
            yield Fault(rule="fused", what=f"op {op} reads value {read} in place of another one", op=op)
    for value, result in _results(before, after, old, op):
        buffers[base.values.buffer[value]] = graph.values.buffer[result]
    earlier = {new: known for known, new in buffers.items()}
    for value in graph.ops.writes[op]:
        buffer, *form = _window(graph, value)
        is_scratch = graph.buffers.role[buffer] == SCRATCH
        if not is_scratch and (earlier.get(buffer), *form) not in writes:
            yield Fault(rule="fused", what=f"op {op} writes value {value}, which no member does", op=op)


def _results(before: Program, after: Program, old: range, op: int) -> Iterator[tuple[ValueId, ValueId]]:
    """What the members make and the op returns: (a member's result, the op's)."""
    call = after.calls[op]
    if not is_fused(call.operator):
        rows = zip(before.calls[old.start].results, call.results, strict=True)
        yield from ((ValueId(a), ValueId(b)) for a, b in rows if a is not None and b is not None)
        return
    group, by_base = group_of(call.operator), dict[int, ValueId]()
    for row, member in zip(old, group.members, strict=True):
        pairs = zip(member.results, before.calls[row].results, strict=False)
        by_base.update((base, ValueId(value)) for base, value in pairs if base is not None and value is not None)
    results = (value for value in call.results if value is not None)
    yield from ((by_base[base], ValueId(value)) for base, value in zip(group.results, results, strict=False))


def _window(graph: Graph, value: ValueId) -> tuple[Any, ...]:
    values = graph.values
    columns = (values.buffer, values.offset, values.shape, values.stride, values.dtype)
    return tuple(column[value] for column in columns)
