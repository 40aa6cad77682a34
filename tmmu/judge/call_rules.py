"""What stands beside the ops of a graph of version 2: the call behind each, and the lifetimes of eager's storages.

The texts are read here by ``ir.call_text`` alone; no operator is looked up, so that the judge needs no torch.
"""

from collections.abc import Iterator
from itertools import pairwise

from tmmu.ir.call_text import CallText, decode_call, decode_number
from tmmu.ir.fault import Fault
from tmmu.ir.graph import EFFECTS, Graph, OpCalls
from tmmu.ir.lifetimes import STREAM, Lifetimes


def calls(graph: Graph) -> Iterator[Fault]:
    """The call of an op is of its operator, takes what it reads, and returns what it writes or reads."""
    table = graph.calls
    if table is None:
        return
    shape = tuple(_shape_faults(table, len(graph.ops)))
    texts = () if shape else tuple(decode_call(text) for text in table.texts)
    yield from shape or _text_faults(texts, table)
    if not shape and None not in texts:
        yield from _op_faults(graph, table, texts)


def _shape_faults(table: OpCalls, count: int) -> Iterator[Fault]:
    for name in ("call", "operands", "effect", "numbers"):
        if len(getattr(table, name)) != count:
            yield Fault(rule="calls", what=f"{name} has {len(getattr(table, name))} rows, not {count}")
    if any(type(row) is not int or not 0 <= row < len(table.texts) for row in table.call):
        yield Fault(rule="calls", what=f"call names a text that is none of {len(table.texts)}")
    if not set(table.effect) <= set(EFFECTS):
        yield Fault(rule="calls", what=f"an effect is none of {', '.join(EFFECTS)}")


def _text_faults(texts: tuple[CallText | None, ...], table: OpCalls) -> Iterator[Fault]:
    """A text is a call, stands once, and comes in the order in which ops name it first."""
    for row, text in enumerate(texts):
        if text is None:
            yield Fault(rule="calls", what=f"text {row} is no call")
    if list(dict.fromkeys(table.call)) != list(range(len(texts))) or len(set(table.texts)) != len(texts):
        yield Fault(rule="calls", what="texts are not each there once, in the order of their first ops")


def _op_faults(graph: Graph, table: OpCalls, texts: tuple[CallText | None, ...]) -> Iterator[Fault]:
    ops = graph.ops
    for op, row in enumerate(table.call):
        text, operands = texts[row], table.operands[op]
        if text is None:
            continue
        objection = _objection(text, operands, table.numbers[op], ops.target[op])
        split = len(operands) - sum(text.results)
        if not objection and not set(operands[:split]) <= set(ops.reads[op]):
            objection = "takes what the op does not read"
        if not objection and not set(operands[split:]) <= {*ops.writes[op], *ops.reads[op]}:
            objection = "returns what the op does not write"
        if objection:
            yield Fault(rule="calls", what=f"the call of op {op} {objection}", op=op)


def _objection(text: CallText, operands: tuple[int, ...], numbers: tuple[bytes, ...], target: str) -> str:
    """Why these operands and numbers cannot stand in the text; empty where they can."""
    if text.operator != target:
        return f"is of {text.operator!r:.80}, not {target}"
    if text.places != len(operands):
        return f"has {len(operands)} tensors for {text.places} places"
    if text.numbers != len(numbers) or any(decode_number(number) is None for number in numbers):
        return f"has {len(numbers)} numbers for {text.numbers} places, or what is none"
    return ""


def lifetimes(graph: Graph) -> Iterator[Fault]:
    """A storage of eager's is born, used and gone in this order, inside the step; rows are in order of birth."""
    eager = graph.notes.eager
    if eager is None:
        return
    for table in (eager.storages, eager.host):
        yield from _table_faults(table, eager.calls)


def _table_faults(table: Lifetimes, calls: int) -> Iterator[Fault]:
    names = [name for name in Lifetimes.__slots__ if name != STREAM or table.stream]
    uneven = [name for name in names if len(getattr(table, name)) != len(table)]
    if uneven:
        yield Fault(rule="lifetimes", what=f"{uneven[0]} has {len(getattr(table, uneven[0]))} rows, not {len(table)}")
    elif any(later < earlier for earlier, later in pairwise(table.birth)):
        yield Fault(rule="lifetimes", what="rows are not in order of birth")
    else:
        yield from _span_faults(table, calls)


def _span_faults(table: Lifetimes, calls: int) -> Iterator[Fault]:
    rows = zip(table.birth, table.last_use, table.death, table.source, strict=True)
    for row, (birth, use, death, source) in enumerate(rows):
        if not birth <= use < death <= calls:
            yield Fault(rule="lifetimes", what=f"storage {row} is born at {birth}, used at {use}, gone at {death}")
        if is_absolute(source):
            yield Fault(rule="lifetimes", what=f"source {source!r} of storage {row} is absolute")


def is_absolute(source: str) -> bool:
    """Whether a source says on whose machine it was."""
    return source.startswith(("/", "\\", "~", "file:")) or source[1:3] in (":\\", ":/")
