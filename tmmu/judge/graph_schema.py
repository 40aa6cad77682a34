"""What a graph looks like, whatever it means: columns, types, numbers, words, ids. The first rules of a legal graph.

Each rule trusts those before it, and the rules of ``judge.rules`` trust all of them.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Final, TypeAlias

from tmmu.errors import AllocationOverflow, InvalidIrShapes, UserError
from tmmu.ir.fault import U64_MAX, Fault
from tmmu.ir.graph import (
    DTYPE_BYTES,
    MODALITIES,
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

Check: TypeAlias = Callable[[Graph], Iterable[Fault]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphRule:
    """A row of the table: what the rule demands, the faults that a graph has by it, and the error that they become."""

    name: str
    demands: str
    check: Check
    error: type[UserError] = InvalidIrShapes
    parts: tuple[str, ...] = ()
    """What the rule looks at, such as ``values`` or ``ops.reads``; empty for everything."""

    def still_holds(self, graph: Graph, legal: Graph) -> bool:
        """Whether the rule need not be asked again: all that it looks at are the very objects of a legal graph."""
        return bool(self.parts) and all(attrgetter(part)(graph) is attrgetter(part)(legal) for part in self.parts)


def graph_rule(
    name: str, check: Check, error: type[UserError] = InvalidIrShapes, *, parts: tuple[str, ...] = ()
) -> GraphRule:
    """The row of ``check``, whose docstring is what the rule demands."""
    return GraphRule(name=name, demands=(check.__doc__ or "").rstrip("."), check=check, error=error, parts=parts)


def columns(graph: Graph) -> Iterator[Fault]:
    """Tables are rectangular."""
    tables: tuple[tuple[str, Buffers | Values | Ops | OpNotes, int], ...] = (
        ("buffers", graph.buffers, len(graph.buffers)),
        ("values", graph.values, len(graph.values)),
        ("ops", graph.ops, len(graph.ops)),
        ("notes.ops", graph.notes.ops, len(graph.ops)),
    )
    sizes = [(f"{name}.{c}", len(getattr(table, c)), rows) for name, table, rows in tables for c in table.__slots__]
    for name, actual, expected in (*sizes, ("notes.buffers.name", len(graph.notes.buffers), len(graph.buffers))):
        if actual != expected:
            yield Fault(rule="columns", what=f"{name} has {actual} rows, not {expected}")


def types(graph: Graph) -> Iterator[Fault]:
    """Columns hold exactly the types of the file format: a symbolic or numpy integer is none of them."""
    flags = (("recompute", graph.ops.recompute),)
    for cell_type, cells in ((int, _numbers(graph)), (str, _texts(graph)), (bool, flags)):
        for name, column in cells:
            for foreign in sorted(kind.__name__ for kind in set(map(type, column)) - {cell_type}):
                yield Fault(rule="types", what=f"{name} holds a {foreign}, not only {cell_type.__name__}")


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
    yield from (("module", notes.module), ("source", notes.source))
    yield "target and name", (graph.target, graph.notes.name)


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
    yield from _unknown_words("role", "buffer", graph.buffers.role, ROLES)
    yield from _unknown_words("dtype", "value", graph.values.dtype, tuple(DTYPE_BYTES))
    yield from _unknown_words("stage", "op", graph.ops.stage, STAGES)
    yield from _unknown_words("phase", "op", notes.phase, PHASES)
    yield from _unknown_words("modality", "op", notes.modality, MODALITIES)


def _unknown_words(name: str, table: str, column: tuple[str, ...], vocabulary: tuple[str, ...]) -> Iterator[Fault]:
    """``table`` is the kind of row, and the fault's field of that name."""
    if set(column) <= set(vocabulary):
        return
    for row, word in enumerate(column):
        if word not in vocabulary:
            message = f"{name} {word!r} of {table} {row} is unknown"
            yield Fault(rule="words", what=message, **{table: row})  # type: ignore[arg-type]


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
            message = f"value {value} has {len(shape)} extents and {len(stride)} strides"
            yield Fault(rule="ranks", what=message, value=value)


SCHEMA_RULES: Final = (
    graph_rule("columns", columns),
    graph_rule("types", types),
    graph_rule("numbers", numbers),
    graph_rule("overflow", overflow, AllocationOverflow),
    graph_rule("words", words),
    graph_rule("ids", ids),
    graph_rule("ranks", ranks),
)


def check_schema(graph: Graph) -> tuple[Fault, ...]:
    """The faults of the first rule of ``SCHEMA_RULES`` that fails; empty for a well-formed graph."""
    return next((faults for faults in (tuple(rule.check(graph)) for rule in SCHEMA_RULES) if faults), ())
