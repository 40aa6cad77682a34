"""What a graph looks like, whatever it means: columns, types, numbers, words, ids. The first rules of a legal graph.

Each rule trusts those before it, and the rules of ``judge.rules`` trust all of them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any, Final, Protocol, TypeAlias

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


class SchemaCheck(Protocol):
    """A rule of the schema; what a graph that passed shares with this one need not be asked again."""

    __name__: str

    def __call__(self, graph: Graph, legal: Graph | None = None, /) -> Iterable[Fault]:
        """The faults of ``graph``."""
        ...


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


def columns(graph: Graph, _legal: Graph | None = None) -> Iterator[Fault]:
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


def types(graph: Graph, legal: Graph | None = None) -> Iterator[Fault]:
    """Columns hold exactly the types of the file format: a symbolic or numpy integer is none of them."""
    for cell_type, table in ((int, _NUMBERS), (str, _TEXTS), (bool, _FLAGS)):
        for name, cells in _touched_columns(table, graph, legal):
            for foreign in sorted(kind.__name__ for kind in set(map(type, cells)) - {cell_type}):
                yield Fault(rule="types", what=f"{name} holds a {foreign}, not only {cell_type.__name__}")


Columns: TypeAlias = tuple[tuple[str, Callable[[Graph], Any], int], ...]
"""Name, where the column is, and how many levels of tuples lie between it and its cells."""

_NUMBERS: Final[Columns] = (
    ("bytes", attrgetter("buffers.bytes"), 0),
    ("buffer", attrgetter("values.buffer"), 0),
    ("offset", attrgetter("values.offset"), 0),
    ("shape", attrgetter("values.shape"), 1),
    ("stride", attrgetter("values.stride"), 1),
    ("reads", attrgetter("ops.reads"), 1),
    ("writes", attrgetter("ops.writes"), 1),
    ("saves", attrgetter("ops.saves"), 1),
    ("overwrites", attrgetter("ops.overwrites"), 2),
    ("inputs", attrgetter("inputs"), 0),
    ("outputs", attrgetter("outputs"), 0),
    ("flops", attrgetter("notes.ops.flops"), 0),
)
_TEXTS: Final[Columns] = (
    ("role", attrgetter("buffers.role"), 0),
    ("dtype", attrgetter("values.dtype"), 0),
    ("name", attrgetter("notes.buffers"), 0),
    ("target", attrgetter("ops.target"), 0),
    ("stage", attrgetter("ops.stage"), 0),
    ("phase", attrgetter("notes.ops.phase"), 0),
    ("modality", attrgetter("notes.ops.modality"), 0),
    ("module", attrgetter("notes.ops.module"), 0),
    ("source", attrgetter("notes.ops.source"), 0),
    ("target and name", lambda graph: (graph.target, graph.notes.name), 0),
)
_FLAGS: Final[Columns] = (("recompute", attrgetter("ops.recompute"), 0),)


def _touched_columns(table: Columns, graph: Graph, legal: Graph | None) -> Iterator[tuple[str, list[Any]]]:
    """Every column, flat, that is not the very one of a graph that passed."""
    for name, column_of, depth in table:
        cells = column_of(graph)
        if legal is not None and cells is column_of(legal):
            continue
        for _ in range(depth):
            cells = chain.from_iterable(cells)
        yield name, list(cells)


def numbers(graph: Graph, legal: Graph | None = None) -> Iterator[Fault]:
    """No size, offset, extent, stride or count is negative."""
    for name, cells in _touched_columns(_NUMBERS, graph, legal):
        if min(cells, default=0) < 0:
            yield Fault(rule="numbers", what=f"{name} holds a negative number")


def overflow(graph: Graph, legal: Graph | None = None) -> Iterator[Fault]:
    """Every number fits in 64 unsigned bits."""
    for name, cells in _touched_columns(_NUMBERS, graph, legal):
        if max(cells, default=0) > U64_MAX:
            yield Fault(rule="overflow", what=f"{name} holds a number beyond 64 bits")


def words(graph: Graph, _legal: Graph | None = None) -> Iterator[Fault]:
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


def ids(graph: Graph, legal: Graph | None = None) -> Iterator[Fault]:
    """Every id is a row of the table that owns it; an overwrite is a pair."""
    same_tables = legal is not None and graph.values is legal.values and graph.buffers is legal.buffers
    limit = len(graph.values)
    if not same_tables:
        yield from _stray_buffers(graph)
    for name in ("inputs", "outputs"):
        for value in getattr(graph, name):
            if value >= limit:
                yield Fault(rule="ids", what=f"{name} names value {value} of {limit}", value=value)
    for name in ("reads", "writes", "saves", "overwrites"):
        rows = getattr(graph.ops, name)
        if legal is None or not same_tables or rows is not getattr(legal.ops, name):
            yield from _stray_pairs(rows, limit) if name == "overwrites" else _stray_values(name, rows, limit)


def _stray_buffers(graph: Graph) -> Iterator[Fault]:
    count = len(graph.buffers)
    for value, buffer in enumerate(graph.values.buffer):
        if buffer >= count:
            yield Fault(rule="ids", what=f"value {value} is on buffer {buffer} of {count}", value=value)


def _stray_values(name: str, rows: Sequence[Sequence[int]], limit: int) -> Iterator[Fault]:
    for op, row in enumerate(rows):
        if row and max(row) >= limit:
            yield Fault(rule="ids", what=f"{name} of op {op} names value {max(row)} of {limit}", op=op)


def _stray_pairs(rows: Sequence[Sequence[Sequence[int]]], limit: int) -> Iterator[Fault]:
    for op, pairs in enumerate(rows):
        for pair in pairs:
            if len(pair) != 2 or max(pair) >= limit:
                yield Fault(rule="ids", what=f"overwrites of op {op} holds {pair}: no pair of values", op=op)


def ranks(graph: Graph, legal: Graph | None = None) -> Iterator[Fault]:
    """Shape and stride of a value have the same length."""
    if legal is not None and graph.values is legal.values:
        return
    for value, (shape, stride) in enumerate(zip(graph.values.shape, graph.values.stride, strict=True)):
        if len(shape) != len(stride):
            message = f"value {value} has {len(shape)} extents and {len(stride)} strides"
            yield Fault(rule="ranks", what=message, value=value)


SCHEMA_CHECKS: Final[tuple[SchemaCheck, ...]] = (columns, types, numbers, overflow, words, ids, ranks)
SCHEMA_RULES: Final = tuple(
    graph_rule(check.__name__, check, AllocationOverflow if check is overflow else InvalidIrShapes)
    for check in SCHEMA_CHECKS
)


def check_schema(graph: Graph, *, legal: Graph | None = None) -> tuple[Fault, ...]:
    """The faults of the first rule of ``SCHEMA_RULES`` that fails; empty for a well-formed graph.

    Columns that are the very ones of ``legal``, a graph that passed, are not looked at again.
    """
    return next((faults for faults in (tuple(check(graph, legal)) for check in SCHEMA_CHECKS) if faults), ())
