"""The ``out=`` overload of an operator, and the arguments that it is called with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch

from tmmu.torch_private import OpOverload, schema_of

_PLACEMENT: Final = frozenset({"layout", "device", "pin_memory"})
"""Arguments that describe the storage of a result, which an ``out=`` tensor already has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOverload:
    """An ``out=`` overload: the arguments that it has in common, and the names of its ``out=`` arguments in order."""

    operator: OpOverload
    accepted: frozenset[str]
    results: tuple[str, ...]

    def arguments(self, call_arguments: Mapping[str, Any], results: Sequence[torch.Tensor]) -> dict[str, Any]:
        """Its arguments by name: those of the functional call, and the tensors to write."""
        named = {name: value for name, value in call_arguments.items() if name in self.accepted}
        return named | dict(zip(self.results, results, strict=True))


def arguments_by_name(operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call under the names of the operator's schema."""
    names = [argument.name for argument in schema_of(operator).arguments]
    return dict(zip(names, args, strict=False)) | dict(kwargs)


def default_of(operator: OpOverload, name: str) -> Any:
    """The default of the argument of that name; ``None`` where the operator has no such argument."""
    return next((a.default_value for a in schema_of(operator).arguments if a.name == name), None)


@cache
def out_overload(operator: OpOverload) -> OutOverload | None:
    """The native ``out=`` overload with the same arguments; ``None`` where there is none.

    Overloads that torch generates allocate and copy, so they do not count.
    """
    packet = operator.overloadpacket
    for name in packet.overloads():
        candidate = getattr(packet, name)
        if torch.Tag.generated not in candidate.tags:
            overload = _match_out(operator, candidate)
            if overload is not None:
                return overload
    return None


def _match_out(operator: OpOverload, candidate: OpOverload) -> OutOverload | None:
    results = [a for a in schema_of(candidate).arguments if a.alias_info is not None and a.alias_info.is_write]
    returns = schema_of(operator).returns
    if not results or len(results) != len(returns) or not all(a.kwarg_only for a in results):
        return None
    if any(str(a.type) != "Tensor" for a in (*results, *returns)):
        return None
    inputs = [a for a in schema_of(candidate).arguments if a.alias_info is None or not a.alias_info.is_write]
    if not _accepts(inputs, schema_of(operator).arguments):
        return None
    return OutOverload(
        operator=candidate,
        accepted=frozenset(a.name for a in inputs),
        results=tuple(a.name for a in results),
    )


def _accepts(inputs: Sequence[Any], arguments: Sequence[Any]) -> bool:
    """Whether ``inputs`` are these arguments, less those of placement; extra ones must have defaults."""
    named = {a.name: a for a in arguments}
    has_layout = "layout" in named
    dropped = {name for name in named if has_layout and name in _PLACEMENT | {"dtype"}}
    offered = {a.name for a in inputs}
    if not all(name in offered or name in dropped for name in named):
        return False
    return all(_is_same_argument(named[a.name], a) if a.name in named else a.has_default_value() for a in inputs)


def _is_same_argument(a: Any, b: Any) -> bool:
    """Whether two schema arguments have the same type, and the same default where the first has one."""
    if str(a.type) != str(b.type):
        return False
    return not a.has_default_value() or a.default_value == b.default_value
