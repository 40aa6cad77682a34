"""Each row of the operator table is true: the operator exists, is elementwise, and survives being computed in place."""

import math
from typing import Any

import pytest
import torch
from torch._ops import OpOverload

import tmmu.passes.capture.record.generator  # noqa: F401 - it defines the operators of the random state
from tmmu.errors import InternalError
from tmmu.passes.operators import table
from tmmu.passes.operators.table import TABLE, UNKNOWN, facts_of

BOOLEAN = frozenset({"bitwise_and.Tensor", "bitwise_or.Tensor", "bitwise_xor.Tensor", "bitwise_not"})
SHAPE = (8, 16)
"""Whole vectors of every processor: a rest is done by code of its own, which for some functions has other bits."""
ELEMENTWISE = sorted(name for name, facts in TABLE.items() if facts.elementwise and not facts.random)


def overload(name: str) -> OpOverload:
    namespace, packet, which = name.split(".")
    op = getattr(getattr(getattr(torch.ops, namespace), packet), which)
    assert isinstance(op, OpOverload)
    return op


def tensor(name: str, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if name.startswith(("aten.bitwise", "aten.logical")):
        return torch.randint(1, 9, SHAPE, generator=generator)
    return torch.rand(SHAPE, generator=generator) * 0.8 + 0.1


def arguments(op: OpOverload) -> tuple[list[Any], dict[str, Any]]:
    """Tensors of one shape for tensor arguments, the plainest value for each other one."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for position, argument in enumerate(op._schema.arguments):
        kind = str(argument.type)
        if argument.has_default_value() and not kind.startswith("Tensor") and argument.name not in ("min", "max"):
            continue
        value = example(str(op), argument.name, kind, position)
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    return args, kwargs


def example(op: str, name: str, kind: str, seed: int) -> Any:  # noqa: PLR0911 - a table
    if "Tensor" in kind and op == "aten.masked_fill.Tensor" and name == "value":
        return torch.tensor(0.5)
    if "Tensor" in kind:
        if name in ("mask", "condition") or (op.startswith("aten.where") and seed == 0):
            return tensor("", seed) > 0.5
        return tensor(op, seed)
    if "bool" in kind:
        return False
    if "str" in kind:
        return "floor" if name == "rounding_mode" else "none"
    if "int" in kind:
        return 1
    return 2 if op.startswith(("aten.bitwise", "aten.logical")) else 0.5


def permute(value: Any, order: torch.Tensor) -> Any:
    movable = isinstance(value, torch.Tensor) and value.dim() > 0
    return value.flatten()[order].view(value.shape) if movable else value


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)


def first_result(op: OpOverload, args: list[Any], kwargs: dict[str, Any]) -> torch.Tensor:
    result = op(*args, **kwargs)
    return result[0] if isinstance(result, tuple) else result


@pytest.mark.parametrize("name", sorted(TABLE))
def test_rows_name_operators(name: str) -> None:
    overload(name)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_results_move_with_the_elements_of_their_arguments(name: str) -> None:
    op = overload(name)
    args, kwargs = arguments(op)
    order = torch.randperm(math.prod(SHAPE), generator=torch.Generator().manual_seed(7))
    moved = first_result(op, [permute(a, order) for a in args], kwargs)
    assert same(moved, permute(first_result(op, args, kwargs), order))


def out_variant(op: OpOverload) -> OpOverload | None:
    """The overload of the same arguments that writes into a given tensor."""
    inputs = [(a.name, str(a.type)) for a in op._schema.arguments]
    packet = getattr(torch.ops.aten, op._schema.name.split("::")[1])
    for name in packet.overloads():
        candidate = getattr(packet, name)
        written = [a for a in candidate._schema.arguments if a.is_out]
        others = [(a.name, str(a.type)) for a in candidate._schema.arguments if not a.is_out]
        if len(written) == 1 and others == inputs:
            return candidate  # type: ignore[no-any-return]
    return None


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_results_in_the_bytes_of_an_argument_are_the_same(name: str) -> None:
    op = overload(name)
    into = out_variant(op)
    args, kwargs = arguments(op)
    expected = first_result(op, args, kwargs)
    if into is None:
        pytest.skip("no variant writes into a given tensor")
    slot = into._schema.arguments[-1].name
    for position, argument in enumerate(args):
        if isinstance(argument, torch.Tensor) and (argument.dtype, argument.shape) == (expected.dtype, expected.shape):
            replaced = list(args)
            replaced[position] = argument.clone()
            into(*replaced, **kwargs, **{slot: replaced[position]})
            assert same(replaced[position], expected), position


def test_operator_without_a_row_claims_nothing() -> None:
    assert facts_of("mine.custom.default") is UNKNOWN
    assert not UNKNOWN.elementwise


def test_two_rows_for_one_operator_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_KNOWN", ["relu"])
    with pytest.raises(InternalError):
        table._table()
