"""The legal graph, as a table: one row per rule, one function per row. Between passes, in production too.

``FORM`` is what a graph looks like (columns, numbers, ids), ``MEANING`` what it says; meaning is looked at only
where form is right, so that no rule has to distrust an index.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

from tmmu.errors import AllocationOverflow, InvalidIrShapes, LivenessCycle, UserError
from tmmu.ir.fault import U64_MAX, Fault, faults_field, headline
from tmmu.ir.graph import (
    CONSTANT,
    DTYPE_BYTES,
    INPUT,
    MODALITIES,
    PARAMETER,
    PERSISTENT_ROLES,
    PHASES,
    ROLES,
    STAGES,
    TARGETS,
    Buffers,
    Graph,
    OpNotes,
    Ops,
    Values,
)
from tmmu.ir.windows import is_dense, windows, writers
from tmmu.judge.versions import edges, first_stale_read, topological, versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row: what the rule demands, the faults that a graph has by it, and the error that they become."""

    name: str
    demands: str
    check: Callable[[Graph], Iterable[Fault]]
    error: type[UserError] = InvalidIrShapes


def columns(graph: Graph) -> Iterator[Fault]:
    """Tables are rectangular."""
    tables: tuple[tuple[str, Buffers | Values | Ops | OpNotes, int], ...] = (
        ("buffers", graph.buffers, len(graph.buffers)),
        ("values", graph.values, len(graph.values)),
        ("ops", graph.ops, len(graph.ops)),
        ("notes.ops", graph.notes.ops, len(graph.ops)),
    )
    for name, table, rows in tables:
        for column in type(table).__slots__:
            found = len(getattr(table, column))
            if found != rows:
                yield Fault(rule="columns", what=f"{name}.{column} has {found} rows, not {rows}")
    if len(graph.notes.buffers) != len(graph.buffers):
        found, rows = len(graph.notes.buffers), len(graph.buffers)
        yield Fault(rule="columns", what=f"notes.buffers.name has {found} rows, not {rows}")


def types(graph: Graph) -> Iterator[Fault]:
    """Columns hold exactly the types of the file format: a symbolic or numpy integer is none of them."""
    flags = (("recompute", graph.ops.recompute),)
    for wanted, cells in ((int, _numbers(graph)), (str, _texts(graph)), (bool, flags)):
        for name, column in cells:
            for found in sorted({kind.__name__ for kind in set(map(type, column)) if kind is not wanted}):
                yield Fault(rule="types", what=f"{name} holds a {found}, not only {wanted.__name__}")


def _numbers(graph: Graph) -> Iterator[tuple[str, Iterable[int]]]:
    """Every column of integers, flat."""
    buffers, values, ops = graph.buffers, graph.values, graph.ops
    flat = chain.from_iterable
    yield from (("bytes", buffers.bytes), ("buffer", values.buffer), ("offset", values.offset))
    yield from (("shape", flat(values.shape)), ("stride", flat(values.stride)))
    yield from (("reads", flat(ops.reads)), ("writes", flat(ops.writes)), ("saves", flat(ops.saves)))
    yield "overwrites", flat(flat(ops.overwrites))
    yield from (("inputs", graph.inputs), ("outputs", graph.outputs), ("flops", graph.notes.ops.flops))


def _texts(graph: Graph) -> Iterator[tuple[str, Iterable[str]]]:
    """Every column of text."""
    ops, notes = graph.ops, graph.notes.ops
    yield from (("role", graph.buffers.role), ("dtype", graph.values.dtype), ("name", graph.notes.buffers))
    yield from (("target", ops.target), ("stage", ops.stage), ("phase", notes.phase), ("modality", notes.modality))
    yield from (
        ("module", notes.module),
        ("source", notes.source),
        ("target and name", (graph.target, graph.notes.name)),
    )


def numbers(graph: Graph) -> Iterator[Fault]:
    """No size, offset, extent, stride or count is negative."""
    for name, column in _numbers(graph):
        if min(column, default=0) < 0:
            yield Fault(rule="numbers", what=f"{name} holds a negative number")


def overflow(graph: Graph) -> Iterator[Fault]:
    """Every number fits in 64 unsigned bits."""
    for name, column in _numbers(graph):
        if max(column, default=0) > U64_MAX:
            yield Fault(rule="overflow", what=f"{name} holds a number beyond 64 bits")


def words(graph: Graph) -> Iterator[Fault]:
    """Target, roles, stages, dtypes, phases and modalities are known ones."""
    if graph.target not in TARGETS:
        yield Fault(rule="words", what=f"target {graph.target!r} is none of {', '.join(TARGETS)}")
    notes = graph.notes.ops
    yield from _unknown("role", "buffer", graph.buffers.role, ROLES)
    yield from _unknown("dtype", "value", graph.values.dtype, tuple(DTYPE_BYTES))
    yield from _unknown("stage", "op", graph.ops.stage, STAGES)
    yield from _unknown("phase", "op", notes.phase, PHASES)
    yield from _unknown("modality", "op", notes.modality, MODALITIES)


def _unknown(what: str, kind: str, column: tuple[str, ...], known: tuple[str, ...]) -> Iterator[Fault]:
    if set(column) <= set(known):
        return
    for row, word in enumerate(column):
        if word not in known:
            yield Fault(rule="words", what=f"{what} {word!r} of {kind} {row} is unknown", **{kind: row})  # type: ignore[arg-type]


def ids(graph: Graph) -> Iterator[Fault]:
    """Every id is a row of the table that owns it; an overwrite is a pair."""
    rows, limit = len(graph.buffers), len(graph.values)
    for value, buffer in enumerate(graph.values.buffer):
        if buffer >= rows:
            yield Fault(rule="ids", what=f"value {value} is on buffer {buffer} of {rows}", value=value)
    for name in ("inputs", "outputs"):
        for value in getattr(graph, name):
            if value >= limit:
                yield Fault(rule="ids", what=f"{name} names value {value} of {limit}", value=value)
    for name in ("reads", "writes", "saves"):
        for op, row in enumerate(getattr(graph.ops, name)):
            if row and max(row) >= limit:
                yield Fault(rule="ids", what=f"{name} of op {op} names value {max(row)} of {limit}", op=op)
    for op, pairs in enumerate(graph.ops.overwrites):
        for pair in pairs:
            if len(pair) != 2 or max(pair) >= limit:
                yield Fault(rule="ids", what=f"overwrites of op {op} holds {pair}: no pair of values", op=op)


def ranks(graph: Graph) -> Iterator[Fault]:
    """Shape and stride of a value have the same length."""
    for value, (shape, stride) in enumerate(zip(graph.values.shape, graph.values.stride, strict=True)):
        if len(shape) != len(stride):
            what = f"value {value} has {len(shape)} extents and {len(stride)} strides"
            yield Fault(rule="ranks", what=what, value=value)


def reach(graph: Graph) -> Iterator[Fault]:
    """The end of every window fits in 64 unsigned bits."""
    for value, (low, high) in enumerate(windows(graph)):
        if high > U64_MAX:
            what = f"value {value} reaches byte {high}, beyond 64 bits"
            yield Fault(rule="reach", what=what, value=value, bytes=(low, high))


def window(graph: Graph) -> Iterator[Fault]:
    """A value lies inside its buffer."""
    home, size = graph.values.buffer, graph.buffers.bytes
    for value, (low, high) in enumerate(windows(graph)):
        if high > size[home[value]]:
            what = f"value {value} covers bytes {low} to {high} of buffer {home[value]}, which has {size[home[value]]}"
            yield Fault(rule="window", what=what, value=value, buffer=home[value], bytes=(low, high))


def once(graph: Graph) -> Iterator[Fault]:
    """At most one op writes a value, and once."""
    seen: dict[int, int] = {}
    for op, row in enumerate(graph.ops.writes):
        for value in row:
            if value in seen:
                what = f"value {value} is written by op {op} and before that by op {seen[value]}"
                yield Fault(rule="once", what=what, op=op, value=value, by=seen[value])
            seen[value] = op


def defined(graph: Graph) -> Iterator[Fault]:
    """A value that no op writes exists from the start: its buffer persists."""
    role, home = graph.buffers.role, graph.values.buffer
    for value, op in enumerate(writers(graph)):
        if op < 0 and role[home[value]] not in PERSISTENT_ROLES:
            what = f"value {value} on {role[home[value]]} buffer {home[value]} is never written"
            yield Fault(rule="defined", what=what, value=value, buffer=home[value])


def read_only(graph: Graph) -> Iterator[Fault]:
    """No op changes a parameter or a constant; what is changed is state."""
    role, home = graph.buffers.role, graph.values.buffer
    for op, row in enumerate(graph.ops.writes):
        for value in row:
            if role[home[value]] in (PARAMETER, CONSTANT):
                what = f"op {op} writes value {value} on {role[home[value]]} buffer {home[value]}"
                yield Fault(rule="read-only", what=what, op=op, value=value, buffer=home[value])


def inputs(graph: Graph) -> Iterator[Fault]:
    """The inputs are the caller's buffers, as they are before any op."""
    role, home, writer = graph.buffers.role, graph.values.buffer, writers(graph)
    for value in graph.inputs:
        if role[home[value]] != INPUT or writer[value] >= 0:
            what = f"input value {value} is on {role[home[value]]} buffer {home[value]}"
            what += f" and written by op {writer[value]}" if writer[value] >= 0 else ""
            yield Fault(rule="inputs", what=what, value=value, buffer=home[value])


def outputs(graph: Graph) -> Iterator[Fault]:
    """An output is what its buffer holds in the end."""
    home, writer = graph.values.buffer, writers(graph)
    last = [row[-1] if row else -1 for row in versions(graph, range(len(graph.ops)))]
    for value in graph.outputs:
        after = last[home[value]]
        if writer[value] != after:
            what = f"output value {value} is gone in the end: op {after} changes buffer {home[value]}"
            yield Fault(rule="outputs", what=what, value=value, buffer=home[value], by=after)


def overwrites(graph: Graph) -> Iterator[Fault]:
    """What may share bytes is alike, dense, each the whole of its own buffer, and the op reads and writes just that."""
    spans = windows(graph) if any(graph.ops.overwrites) else ()
    for op, pairs in enumerate(graph.ops.overwrites):
        for written, read in pairs:
            wrong = _unlike(graph, spans, op, written, read)
            if wrong:
                what = f"op {op} cannot write value {written} over value {read}: {wrong}"
                yield Fault(rule="overwrites", what=what, op=op, value=written, buffer=graph.values.buffer[written])


def _unlike(graph: Graph, spans: tuple[tuple[int, int], ...], op: int, written: int, read: int) -> str:
    """Why ``written`` cannot take the bytes of ``read`` at ``op``; empty if it can."""
    values, home = graph.values, graph.values.buffer
    if written not in graph.ops.writes[op] or read not in graph.ops.reads[op]:
        return "the op does not write the one and read the other"
    if home[written] == home[read] or any(home[value] == home[read] for value in graph.ops.writes[op]):
        return "the op changes the buffer that it reads"
    if any(column[written] != column[read] for column in (values.dtype, values.shape, values.stride)):
        return "dtype, shape or stride differ"
    if not is_dense(values.shape[read], values.stride[read]):
        return "they are not dense"
    whole = all(spans[value] == (0, graph.buffers.bytes[home[value]]) for value in (written, read))
    return "" if whole else "one of them is not the whole of its buffer"


def saves(graph: Graph) -> Iterator[Fault]:
    """An op saves only what it reads or writes."""
    ops = graph.ops
    for op, row in enumerate(ops.saves):
        for value in row:
            if value not in ops.reads[op] and value not in ops.writes[op]:
                what = f"op {op} saves value {value}, which it does not touch"
                yield Fault(rule="saves", what=what, op=op, value=value)


def order(graph: Graph) -> Iterator[Fault]:
    """Some order runs every op after what it needs and before what destroys that."""
    ops = range(len(graph.ops))
    stale = first_stale_read(graph, ops)
    stuck = len(ops) - len(topological(ops, edges(graph, ops))) if stale else 0
    if stale and stuck:
        what = f"no order exists: {stuck} ops wait for each other; in id order, op {stale[0]} misses value {stale[1]}"
        yield Fault(rule="order", what=what, op=stale[0], value=stale[1])


def sources(graph: Graph) -> Iterator[Fault]:
    """A source is a file and line relative to the model: no plan or graph tells whose machine it was made on."""
    for op, source in enumerate(graph.notes.ops.source):
        if source.startswith(("/", "\\", "~", "file:")) or source[1:3] in (":\\", ":/"):
            yield Fault(rule="sources", what=f"source {source!r} of op {op} is absolute", op=op)


def _row(check: Callable[[Graph], Iterable[Fault]], error: type[UserError] = InvalidIrShapes) -> Rule:
    name = check.__name__.replace("_", "-")
    return Rule(name=name, demands=(check.__doc__ or "").rstrip("."), check=check, error=error)


FORM: Final = (
    _row(columns),
    _row(types),
    _row(numbers),
    _row(overflow, AllocationOverflow),
    _row(words),
    _row(ids),
    _row(ranks),
)
MEANING: Final = (
    _row(reach, AllocationOverflow),
    _row(window),
    _row(once),
    _row(defined),
    _row(read_only),
    _row(inputs),
    _row(order, LivenessCycle),
    _row(outputs),
    _row(overwrites),
    _row(saves),
    _row(sources),
)
RULES: Final = FORM + MEANING


def check_form(graph: Graph) -> tuple[Fault, ...]:
    """The faults of the first rule of ``FORM`` that fails: the rules after it trust what it demands."""
    return next((found for found in (tuple(rule.check(graph)) for rule in FORM) if found), ())


def check_graph(graph: Graph) -> tuple[Fault, ...]:
    """Every fault of the graph, in the order of the table; empty for a legal graph. Linear in its size.

    Meaning is looked at only where form is right.
    """
    return check_form(graph) or tuple(fault for rule in MEANING for fault in rule.check(graph))


def require_legal(graph: Graph) -> None:
    """Returns for a legal graph; otherwise the error of the first fault's rule, with the faults as fields."""
    faults = check_graph(graph)
    if faults:
        error = next(rule.error for rule in RULES if rule.name == faults[0].rule)
        fix = "correct the graph: docs/spec/ir.md lists the rules"
        raise error(headline(faults), fix=fix, faults=faults_field(faults), count=len(faults))
