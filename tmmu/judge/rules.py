"""The rules of a legal graph, as a table: one row per rule, one function per row (docs/spec/ir.md).

``SCHEMA_RULES`` say what a graph looks like (columns, numbers, ids), ``SEMANTIC_RULES`` what it means. These are
checked only where the schema holds, so that no rule has to distrust an index. Passes check their results by them, in
production too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tmmu.errors import AllocationOverflow, LivenessCycle
from tmmu.ir.fault import U64_MAX, Fault, faults_field, headline
from tmmu.ir.graph import CONSTANT, HOST, HOST_COPY, INPUT, PARAMETER, PERSISTENT_ROLES, Graph
from tmmu.ir.ids import BufferId, OpId, ValueId
from tmmu.ir.windows import is_dense, windows, writers
from tmmu.judge.call_rules import calls, is_absolute, lifetimes
from tmmu.judge.graph_schema import SCHEMA_RULES, check_schema, graph_rule
from tmmu.judge.versions import edges, first_stale_read, topological_order, versions


def reach(graph: Graph) -> Iterator[Fault]:
    """The end of every window fits in 64 unsigned bits."""
    for value, (low, high) in enumerate(windows(graph)):
        if high > U64_MAX:
            message = f"value {value} reaches byte {high}, beyond 64 bits"
            yield Fault(rule="reach", what=message, value=value, bytes=(low, high))


def window(graph: Graph) -> Iterator[Fault]:
    """A value lies inside its buffer."""
    buffer_of, size = graph.values.buffer, graph.buffers.bytes
    for value, (low, high) in enumerate(windows(graph)):
        buffer = buffer_of[value]
        if high > size[buffer]:
            message = f"value {value} covers bytes {low} to {high} of buffer {buffer}, which has {size[buffer]}"
            yield Fault(rule="window", what=message, value=value, buffer=buffer, bytes=(low, high))


def once(graph: Graph) -> Iterator[Fault]:
    """At most one op writes a value, and once."""
    writer: dict[int, int] = {}
    for op, row in enumerate(graph.ops.writes):
        for value in row:
            if value in writer:
                message = f"value {value} is written by op {op} and before that by op {writer[value]}"
                yield Fault(rule="once", what=message, op=op, value=value, by=writer[value])
            writer[value] = op


def defined_values(graph: Graph) -> Iterator[Fault]:
    """A value that no op writes exists from the start: its buffer persists."""
    role, buffer_of = graph.buffers.role, graph.values.buffer
    for value, op in enumerate(writers(graph)):
        if op < 0 and role[buffer_of[value]] not in PERSISTENT_ROLES:
            message = f"value {value} on {role[buffer_of[value]]} buffer {buffer_of[value]} is never written"
            yield Fault(rule="defined", what=message, value=value, buffer=buffer_of[value])


def read_only(graph: Graph) -> Iterator[Fault]:
    """No op changes a parameter or a constant; what is changed is state."""
    role, buffer_of = graph.buffers.role, graph.values.buffer
    for op, row in enumerate(graph.ops.writes):
        for value in row:
            if role[buffer_of[value]] in (PARAMETER, CONSTANT):
                message = f"op {op} writes value {value} on {role[buffer_of[value]]} buffer {buffer_of[value]}"
                yield Fault(rule="read-only", what=message, op=op, value=value, buffer=buffer_of[value])


def inputs(graph: Graph) -> Iterator[Fault]:
    """The inputs are the caller's buffers, as they are before any op."""
    role, buffer_of, writer = graph.buffers.role, graph.values.buffer, writers(graph)
    for value in graph.inputs:
        if role[buffer_of[value]] != INPUT or writer[value] >= 0:
            message = f"input value {value} is on {role[buffer_of[value]]} buffer {buffer_of[value]}"
            message += f" and written by op {writer[value]}" if writer[value] >= 0 else ""
            yield Fault(rule="inputs", what=message, value=value, buffer=buffer_of[value])


def outputs(graph: Graph) -> Iterator[Fault]:
    """An output is what its buffer holds in the end."""
    buffer_of, writer = graph.values.buffer, writers(graph)
    last = [row[-1] if row else -1 for row in versions(graph, graph.ops.ids)]
    for value in graph.outputs:
        after = last[buffer_of[value]]
        if writer[value] != after:
            message = f"output value {value} is gone in the end: op {after} changes buffer {buffer_of[value]}"
            yield Fault(rule="outputs", what=message, value=value, buffer=buffer_of[value], by=after)


def overwrites(graph: Graph) -> Iterator[Fault]:
    """What may share bytes is alike, dense, each the whole of its own buffer, and the op reads and writes just that."""
    spans = windows(graph) if any(graph.ops.overwrites) else ()
    for op, pairs in zip(graph.ops.ids, graph.ops.overwrites, strict=True):
        access = _access(graph, op) if pairs else None
        for written, read in pairs:
            objection = _overwrite_objection(graph, spans, access, written, read) if access else ""
            if objection:
                message = f"op {op} cannot write value {written} over value {read}: {objection}"
                yield Fault(rule="overwrites", what=message, op=op, value=written, buffer=graph.values.buffer[written])


@dataclass(frozen=True, slots=True)
class _Access:
    """The values that an op reads and writes, and the buffers that it changes, to be asked once for each pair."""

    reads: frozenset[ValueId]
    writes: frozenset[ValueId]
    changed: frozenset[BufferId]


def _access(graph: Graph, op: OpId) -> _Access:
    reads, writes = graph.ops.reads[op], graph.ops.writes[op]
    changed = frozenset(graph.values.buffer[value] for value in writes)
    return _Access(frozenset(reads), frozenset(writes), changed)


def _overwrite_objection(
    graph: Graph, spans: tuple[tuple[int, int], ...], access: _Access, written: ValueId, read: ValueId
) -> str:
    """Why ``written`` cannot take the bytes of ``read`` at an op; empty if it can."""
    values, buffer_of = graph.values, graph.values.buffer
    if written not in access.writes or read not in access.reads:
        return "the op does not write the one and read the other"
    if buffer_of[read] in access.changed:
        return "the op changes the buffer that it reads"
    if any(column[written] != column[read] for column in (values.dtype, values.shape, values.stride)):
        return "dtype, shape or stride differ"
    if not is_dense(values.shape[read], values.stride[read]):
        return "they are not dense"
    whole = all(spans[value] == (0, graph.buffers.bytes[buffer_of[value]]) for value in (written, read))
    return "" if whole else "one of them is not the whole of its buffer"


def saves(graph: Graph) -> Iterator[Fault]:
    """An op saves only what it reads or writes."""
    ops = graph.ops
    for op, row in enumerate(ops.saves):
        touched = {*ops.reads[op], *ops.writes[op]} if row else frozenset[ValueId]()
        for value in row:
            if value not in touched:
                message = f"op {op} saves value {value}, which it does not touch"
                yield Fault(rule="saves", what=message, op=op, value=value)


def host(graph: Graph) -> Iterator[Fault]:
    """What touches host memory is a copy of one value between it and the device; no output lies there.

    Host bytes are one value's alone, so that its copies may go on beside the ops: one op writes them, and only once.
    """
    if HOST not in graph.buffers.role:
        return
    on_host = [graph.buffers.role[buffer] == HOST for buffer in graph.values.buffer]
    copied = set[BufferId]()
    for op, (reads, writes) in enumerate(zip(graph.ops.reads, graph.ops.writes, strict=True)):
        if not any(on_host[value] for value in (*reads, *writes)):
            continue
        if not _is_host_copy(graph, on_host, op):
            message = f"op {op} {graph.ops.target[op]} touches host memory, and is no copy to it or from it"
            yield Fault(rule="host", what=message, op=op)
        for buffer in {graph.values.buffer[value] for value in writes if on_host[value]}:
            if buffer in copied:
                yield Fault(rule="host", what=f"op {op} writes buffer {buffer} again, in host memory", op=op)
            copied.add(buffer)
    for value in graph.outputs:
        if on_host[value]:
            yield Fault(rule="host", what=f"output value {value} is in host memory", value=value)


def _is_host_copy(graph: Graph, on_host: Sequence[bool], op: int) -> bool:
    """Whether an op copies one value, with its form, to one in host memory, or from there into one buffer."""
    reads, writes, values = graph.ops.reads[op], graph.ops.writes[op], graph.values
    if graph.ops.target[op] != HOST_COPY or len(reads) != 1 or not writes:
        return False
    (source,), targets = reads, {on_host[value] for value in writes}
    forms = [(values.dtype[value], values.shape[value], values.stride[value]) for value in (source, *writes)]
    is_between = targets == {not on_host[source]} and len({values.buffer[value] for value in writes}) == 1
    return is_between and forms[0] in forms[1:] and (on_host[source] or len(writes) == 1)


def order(graph: Graph) -> Iterator[Fault]:
    """Some order runs every op after what it needs and before what destroys that."""
    ops = graph.ops.ids
    stale = first_stale_read(graph, ops)
    stuck = len(ops) - len(topological_order(ops, edges(graph, ops))) if stale else 0
    if stale and stuck:
        op, value = stale
        message = f"no order exists: {stuck} ops wait for each other; in id order, op {op} misses value {value}"
        yield Fault(rule="order", what=message, op=op, value=value)


def sources(graph: Graph) -> Iterator[Fault]:
    """A source is a file and line relative to the model: no plan or graph tells whose machine it was made on."""
    for op, source in enumerate(graph.notes.ops.source):
        if is_absolute(source):
            yield Fault(rule="sources", what=f"source {source!r} of op {op} is absolute", op=op)


WRITES: Final = ("buffers", "values", "ops.writes")
ACCESSES: Final = ("values", "ops.reads", "ops.writes")
SEMANTIC_RULES: Final = (
    graph_rule("reach", reach, AllocationOverflow, parts=("values",)),
    graph_rule("window", window, parts=("values", "buffers")),
    graph_rule("once", once, parts=("ops.writes",)),
    graph_rule("defined", defined_values, parts=WRITES),
    graph_rule("read-only", read_only, parts=WRITES),
    graph_rule("inputs", inputs, parts=(*WRITES, "inputs")),
    graph_rule("order", order, LivenessCycle, parts=(*ACCESSES, "buffers")),
    graph_rule("outputs", outputs, parts=(*ACCESSES, "buffers", "outputs")),
    graph_rule("overwrites", overwrites, parts=(*ACCESSES, "buffers", "ops.overwrites")),
    graph_rule("saves", saves, parts=("ops.reads", "ops.writes", "ops.saves")),
    graph_rule("host", host, parts=(*ACCESSES, "buffers", "ops.target", "outputs")),
    graph_rule("sources", sources, parts=("notes",)),
    graph_rule("calls", calls, parts=("calls", "ops.target", "ops.reads", "ops.writes")),
    graph_rule("lifetimes", lifetimes, parts=("notes",)),
)
# The rule names are in error records and in docs/spec/ir.md, in this order.
RULES: Final = SCHEMA_RULES + SEMANTIC_RULES


def check_graph(graph: Graph, *, legal: Graph | None = None) -> tuple[Fault, ...]:
    """Every fault of the graph, in the order of the table; empty for a legal graph. Linear in its size.

    A rule that looks at nothing but what stands in ``legal``, a graph that passed, is not asked again.
    """
    rules = [rule for rule in SEMANTIC_RULES if legal is None or not rule.still_holds(graph, legal)]
    return check_schema(graph, legal=legal) or tuple(fault for rule in rules for fault in rule.check(graph))


def require_legal(graph: Graph) -> None:
    """Returns for a legal graph; otherwise the error of the first fault's rule, with the faults as fields."""
    faults = check_graph(graph)
    if faults:
        error = next(rule.error for rule in RULES if rule.name == faults[0].rule)
        fix = "correct the graph: docs/spec/ir.md lists the rules"
        raise error(headline(faults), fix=fix, faults=faults_field(faults), count=len(faults))
