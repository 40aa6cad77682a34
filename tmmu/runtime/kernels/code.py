"""Straight-line code: operator calls on tensors that are there already, ready to run one after another."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch

from tmmu.errors import InternalError
from tmmu.runtime.kernels.scalars import at_hand
from tmmu.runtime.memory.slab import same_place

Run: TypeAlias = Callable[[], object]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Instruction:
    """A call with every argument of its schema, in order. Each tensor that it returns is copied to its place in
    ``into``, where it has one; an operator that writes where it is told needs none.
    """

    operator: Any
    args: tuple[Any, ...]
    into: tuple[torch.Tensor | None, ...] = ()


Code: TypeAlias = tuple[Instruction, ...]


def instruction(operator: Any, *args: Any, into: Sequence[torch.Tensor | None] = (), **kwargs: Any) -> Instruction:
    """The call with these arguments, and the schema's defaults for the others."""
    return call_into(operator, args, kwargs, into=into)


def call_into(
    operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, into: Sequence[torch.Tensor | None] = ()
) -> Instruction:
    """The same, of arguments in a list and a map."""
    arguments = operator._schema.arguments
    named = dict(zip((argument.name for argument in arguments), args, strict=False)) | dict(kwargs)
    whole = tuple(named.get(argument.name, argument.default_value) for argument in arguments)
    made = at_hand(operator, whole)
    operator = _taking_number(operator, dict(zip((argument.name for argument in arguments), made, strict=True)))
    return Instruction(operator=operator, args=made, into=tuple(into))


def _taking_number(operator: Any, named: Mapping[str, Any]) -> Any:
    """The overload of a change in place that takes a number as a number: what it makes of it is the same."""
    if not isinstance(named.get("other"), (bool, int, float)) or operator._overloadname != "Tensor":
        return operator
    scalar = getattr(operator.overloadpacket, "Scalar", None)
    in_place = operator._schema.name.endswith("_")
    return scalar if in_place and scalar is not None and _names(scalar) == _names(operator) else operator


def _names(operator: Any) -> list[str]:
    return [argument.name for argument in operator._schema.arguments]


def runner(code: Code) -> Run:
    """What runs it, a call at a time."""
    runs = tuple(_run_of(one) for one in code)
    if len(runs) == 1:
        return runs[0]

    def run() -> None:
        for one in runs:
            one()

    return run


def leaves(value: Any) -> list[Any]:
    """What an operator returned, lists and tuples opened."""
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def returned(one: Instruction) -> list[Any]:
    """Runs it, and gives what it returns, wherever that lies."""
    return leaves(_called(one)())


def run_settling(one: Instruction) -> Instruction:
    """Runs it; the same, without the copies that were none: of a result left out, or in its place already."""
    if not one.into:
        _called(one)()
        return one
    copied = _put_all(_called(one)(), one)
    into = tuple(place if moved else None for place, moved in zip(one.into, copied, strict=True))
    return replace(one, into=into if any(copied) else ())


def _run_of(one: Instruction) -> Run:
    called = _called(one)
    if not one.into:
        return called
    return lambda: _put_all(called(), one)


def _called(one: Instruction) -> Run:
    arguments = one.operator._schema.arguments
    positional = [value for value, argument in zip(one.args, arguments, strict=True) if not argument.kwarg_only]
    named = {a.name: value for value, a in zip(one.args, arguments, strict=True) if a.kwarg_only}
    return partial(one.operator._op, *positional, **named)


def _put_all(returned: object, one: Instruction) -> list[bool]:
    """Each result in its place; whether it had to be copied there."""
    found = leaves(returned)
    if len(found) != len(one.into):
        raise InternalError(f"{one.operator} returns {len(found)} results, not {len(one.into)}")
    return [_put(leaf, place) for leaf, place in zip(found, one.into, strict=True)]


def _put(leaf: torch.Tensor | None, place: torch.Tensor | None) -> bool:
    """An axis that stands still is one element; a real kernel may leave out what nobody asked for."""
    if leaf is None or place is None:
        return False
    pick = moving_axes(place)
    leaf, place = (leaf[pick], place[pick]) if pick else (leaf, place)
    if same_place(leaf, place):
        return False
    place.copy_(leaf)
    return True


def moving_axes(tensor: torch.Tensor) -> tuple[slice, ...]:
    """What selects each element of the memory once, ``()`` for all: of an axis that stands still, the first."""
    still = [n > 1 and not stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return tuple(slice(0, 1) if stays else slice(None) for stays in still) if any(still) else ()
