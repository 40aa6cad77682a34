"""The call of each op as columns of the graph, so that a file suffices to run it again (docs/spec/ir.md).

The last row of the pass table: rewrites before it change calls, and the columns are written from those.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch

from tmmu.ir.call_text import (
    COMPLEX,
    DEFAULT,
    LIST,
    NUMBER,
    OPAQUE,
    TENSOR,
    Argument,
    CallText,
    encode_call,
    encode_float,
    encode_number,
)
from tmmu.ir.graph import ONCE, PERSISTENT_ROLES, PURE, RANDOM, STATEFUL, Graph, OpCalls
from tmmu.ir.ids import ValueId
from tmmu.ir.program import Call, Program, RankGroup, ValueRef
from tmmu.passes.operators.schema import argument_schema
from tmmu.passes.operators.table import facts_of
from tmmu.torch_private import OpOverload

_NAMED: Final = {
    torch.dtype: "dtype",
    torch.layout: "layout",
    torch.memory_format: "memory_format",
    torch.device: "device",
}
_COUNTS: Final = frozenset({"int", "bool", "List[int]", "List[bool]", "Optional[int]", "Optional[bool]"})
"""Schema types of arguments that say what is computed, and not with which number."""
_BUILTIN: Final = ("aten.", "prims.", "tmmu.")
_MISSING: Final = object()
"""Stands for an argument that the call leaves out."""


def describe_calls(program: Program) -> Program:
    """The program whose graph has a row of calls for each op."""
    graph = program.graph
    texts: dict[bytes, int] = {}
    rows = [
        describe_call(call, has_inputs=graph.ops.stage[op] == "update" or call.numbers_vary)
        for op, call in enumerate(program.calls)
    ]
    table = OpCalls(
        call=tuple(texts.setdefault(row.text, len(texts)) for row in rows),
        texts=tuple(texts),
        operands=tuple(tuple(row.operands) for row in rows),
        effect=tuple(_effect(graph, op, call) for op, call in enumerate(program.calls)),
        numbers=tuple(tuple(row.numbers) for row in rows),
    )
    return replace(program, graph=replace(graph, calls=table))


@dataclass(slots=True)
class CallDescription:
    """One call in columns: ``operands`` and ``numbers`` in the order of their places, arguments before results."""

    text: bytes = b""
    operands: list[ValueId] = field(default_factory=list)
    numbers: list[bytes] = field(default_factory=list)


def describe_call(call: Call, *, has_inputs: bool) -> CallDescription:
    """The row of a call; ``has_inputs``: whether its numbers are inputs of the step, and in no text."""
    row = CallDescription()
    arguments: list[Argument] = [
        [DEFAULT] if is_default else _argument(value, row, is_input=has_inputs and kind not in _COUNTS)
        for value, kind, is_default in _schema_arguments(call)
    ]
    has_tensor = tuple(value is not None for value in call.results)
    row.operands += [ValueId(value) for value in call.results if value is not None]
    row.text = encode_call(
        CallText(
            operator=str(call.operator),
            arguments=tuple(arguments),
            results=has_tensor,
            switches=tuple((name, _plain(value)) for name, value in call.switches),
        )
    )
    return row


def _schema_arguments(call: Call) -> Iterator[tuple[Any, str, bool]]:
    """Value, schema type, and whether it is absent or what the schema has, which is one and the same.

    What is no overload (an operator that only stands in a program) has no schema: its arguments are as they are.
    """
    if not isinstance(call.operator, OpOverload):
        yield from ((value, "", False) for value in (*call.args, *(value for _, value in call.kwargs)))
        return
    schema = argument_schema(call.operator)
    by_name = dict(zip((name for name, _, _ in schema), call.args, strict=False)) | dict(call.kwargs)
    for name, kind, default in schema:
        value = by_name.get(name, _MISSING)
        yield value, kind, value is _MISSING or (type(value) is type(default) and value == default)


def _argument(value: Any, row: CallDescription, *, is_input: bool) -> Argument:
    if isinstance(value, ValueRef):
        row.operands.append(ValueId(value.value))
        return [TENSOR, value.conj + 2 * value.neg]
    if isinstance(value, (list, tuple)):
        return [LIST, *(_argument(item, row, is_input=is_input) for item in value)]
    if is_input and isinstance(value, (int, float, complex)):
        row.numbers.append(encode_number(_plain(value)))
        return [NUMBER]
    return _plain(value)


def _plain(value: Any) -> Argument:
    if value is None:
        return []
    if isinstance(value, float):
        return encode_float(value)
    if isinstance(value, complex):
        return [COMPLEX, encode_float(value.real), encode_float(value.imag)]
    if isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, RankGroup):
        return value.name
    name = _NAMED.get(type(value))
    return [OPAQUE, type(value).__name__] if name is None else [name, str(value).removeprefix("torch.")]


def _effect(graph: Graph, op: int, call: Call) -> str:
    """Of the four, the one that forbids most. What writes nothing is there for what else it does.

    No text says a formula, by which two calls could be told apart: such a call runs once.
    """
    target, written = graph.ops.target[op], graph.ops.writes[op]
    facts = facts_of(target)
    if not written or call.has_formulas or (not facts.has_row and not target.startswith(_BUILTIN)):
        return ONCE
    if facts.random or torch.Tag.nondeterministic_seeded in getattr(call.operator, "tags", ()):
        return RANDOM
    return STATEFUL if _writes_state(graph, written) else PURE


def _writes_state(graph: Graph, written: Sequence[ValueId]) -> bool:
    return any(graph.buffers.role[graph.values.buffer[value]] in PERSISTENT_ROLES for value in written)
