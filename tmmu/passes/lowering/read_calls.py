"""The other way: a program from the graph of a file, its calls made of their texts, without tracing."""

from collections.abc import Iterator
from typing import Any

import torch

import tmmu.passes.capture.record.generator  # noqa: F401 - tmmu's own operators exist once it is imported
from tmmu.errors import UnsupportedOp
from tmmu.ir.call_text import (
    COMPLEX,
    DEFAULT,
    LIST,
    NUMBER,
    OPAQUE,
    TENSOR,
    Argument,
    CallText,
    decode_call,
    decode_float,
    decode_number,
)
from tmmu.ir.graph import Graph, OpCalls
from tmmu.ir.program import Call, Program, ValueRef
from tmmu.torch_private import OpOverload, schema_of


def read_program(graph: Graph) -> Program:
    """The program of a legal graph of version 2.

    Errors: ``UNSUPPORTED_OP`` for a graph of version 1, an operator that this torch has not, or an argument that no
    file holds.
    """
    if graph.calls is None:
        raise UnsupportedOp("the graph does not say its calls (version 1)", fix="trace the model again")
    return Program(graph=graph, calls=tuple(read_call(graph.calls, op) for op in graph.ops.ids))


def read_call(table: OpCalls, op: int) -> Call:
    """The call of one op; errors as of ``read_program``."""
    text = decode_call(table.texts[table.call[op]])
    assert text is not None  # the graph is legal
    operator = find_operator(text.operator)
    operands = iter(table.operands[op])
    numbers = iter([decode_number(number) for number in table.numbers[op]])
    args, kwargs = _arguments(text, operator, operands, numbers)
    results = tuple(next(operands) if is_tensor else None for is_tensor in text.results)
    switches = tuple((name, _value(value, operands, numbers)) for name, value in text.switches)
    return Call(operator=operator, args=args, kwargs=kwargs, results=results, origin=op, switches=switches)


def find_operator(name: str) -> OpOverload:
    """The overload of this name, as ``aten.add.Tensor``; ``UNSUPPORTED_OP`` where this torch has none."""
    namespace, _, rest = name.partition(".")
    packet, _, overload = rest.rpartition(".")
    try:
        found = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    except AttributeError:
        found = None
    if not isinstance(found, OpOverload):
        raise UnsupportedOp(f"this torch has no operator {name}", fix="import the library that defines it")
    return found


def _arguments(
    text: CallText, operator: OpOverload, operands: Iterator[int], numbers: Iterator[Any]
) -> tuple[tuple[Any, ...], tuple[tuple[str, Any], ...]]:
    """Positional arguments up to the first that is left out, the others by name."""
    schema = schema_of(operator).arguments
    if len(schema) != len(text.arguments):
        message = f"{text.operator} has {len(schema)} arguments in this torch, and {len(text.arguments)} in the file"
        raise UnsupportedOp(message, fix="use the torch that the graph was traced with")
    args: list[Any] = []
    kwargs: list[tuple[str, Any]] = []
    for argument, coded in zip(schema, text.arguments, strict=True):
        if coded == [DEFAULT]:
            continue
        value = _value(coded, operands, numbers)
        if argument.kwarg_only or len(args) < schema.index(argument):
            kwargs.append((argument.name, value))
        else:
            args.append(value)
    return tuple(args), tuple(kwargs)


def _value(coded: Argument, operands: Iterator[int], numbers: Iterator[Any]) -> Any:
    match coded:
        case bytes():
            return decode_float(coded)
        case bool() | int() | str():
            return coded
        case []:
            return None
        case [tag, *rest]:
            return _tagged(str(tag), rest, operands, numbers)
    raise AssertionError(coded)  # the graph is legal


def _tagged(tag: str, rest: list[Any], operands: Iterator[int], numbers: Iterator[Any]) -> Any:
    if tag == TENSOR:
        return ValueRef(next(operands), bool(rest[0] & 1), bool(rest[0] & 2))
    if tag == LIST:
        return [_value(item, operands, numbers) for item in rest]
    if tag == NUMBER:
        return _value(next(numbers), operands, numbers)
    if tag == COMPLEX:
        return complex(decode_float(rest[0]), decode_float(rest[1]))
    if tag == OPAQUE:
        raise UnsupportedOp(f"a call takes a {rest[0]}, which no file holds", fix="trace the model again")
    return torch.device(rest[0]) if tag == "device" else getattr(torch, rest[0])
