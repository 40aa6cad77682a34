"""Which overload of an operator writes into given tensors, and what it is called with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch
from torch._ops import OpOverload

_PLACE: Final = frozenset({"layout", "device", "pin_memory"})
"""Arguments that say where a result goes, which a result that is given says itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOverload:
    """An ``out=`` overload: the arguments that it takes over, and the names of its results in order."""

    operator: OpOverload
    taken: frozenset[str]
    results: tuple[str, ...]

    def arguments(self, given: Mapping[str, Any], results: Sequence[torch.Tensor]) -> dict[str, Any]:
        """What to call it with: the functional call's arguments by name, and the tensors to write."""
        named = {name: value for name, value in given.items() if name in self.taken}
        return named | dict(zip(self.results, results, strict=True))


def arguments_by_name(operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call under the names of the operator's schema."""
    names = [argument.name for argument in operator._schema.arguments]
    return dict(zip(names, args, strict=False)) | dict(kwargs)


@cache
def out_overload(operator: OpOverload) -> OutOverload | None:
    """The overload of the same operator that takes the same arguments and writes its results where it is told.

    Overloads that torch generates run the operator and copy, so they are left out; so are those with other arguments.
    """
    packet = operator.overloadpacket
    for name in packet.overloads():
        candidate = getattr(packet, name)
        if torch.Tag.generated not in candidate.tags:
            found = _as_out(operator, candidate)
            if found is not None:
                return found
    return None


def _as_out(operator: OpOverload, candidate: OpOverload) -> OutOverload | None:
    results = [a for a in candidate._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    wanted = operator._schema.returns
    if not results or len(results) != len(wanted) or not all(a.kwarg_only for a in results):
        return None
    if any(str(a.type) != "Tensor" for a in (*results, *wanted)):
        return None
    rest = [a for a in candidate._schema.arguments if a.alias_info is None or not a.alias_info.is_write]
    if not _takes(rest, operator._schema.arguments):
        return None
    return OutOverload(
        operator=candidate,
        taken=frozenset(a.name for a in rest),
        results=tuple(a.name for a in results),
    )


def _takes(rest: Sequence[Any], arguments: Sequence[Any]) -> bool:
    """Whether ``rest`` are these arguments, less those of place, and more only where a default is the same call."""
    known = {a.name: a for a in arguments}
    placed = "layout" in known
    dropped = {name for name in known if placed and name in _PLACE | {"dtype"}}
    offered = {a.name for a in rest}
    if not all(name in offered or name in dropped for name in known):
        return False
    return all(_same(known[a.name], a) if a.name in known else a.has_default_value() for a in rest)


def _same(one: Any, other: Any) -> bool:
    """Whether two arguments have one type, and one default where the first has any."""
    if str(one.type) != str(other.type):
        return False
    return not one.has_default_value() or one.default_value == other.default_value
