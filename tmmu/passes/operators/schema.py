"""What an operator's schema says about its arguments, looked up once per overload."""

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from tmmu.passes.operators.collectives import WRITES
from tmmu.torch_private import OpOverload, schema_of

_UNDECLARED: Final[dict[str, tuple[tuple[int, ...], int | None]]] = {
    "aten.native_batch_norm.default": ((3, 4), 5),
    "aten.cudnn_batch_norm.default": ((3, 4), 5),
    "aten.miopen_batch_norm.default": ((3, 4), 5),
    "aten.batch_norm_update_stats.default": ((1, 2), None),
    **{f"{name}.default": (positions, None) for name, positions in WRITES.items()},
}
"""Operators whose schema hides a write: (positions written, position of the flag that enables it or ``None``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """``mutated`` are the argument positions and names that the operator writes."""

    name: str
    positions: tuple[int, ...]
    keywords: tuple[str, ...]

    @property
    def mutates(self) -> bool:
        """Whether any argument is written."""
        return bool(self.positions) or self.name in _UNDECLARED


@cache
def signature(op: OpOverload) -> Signature:
    """The operator's printed name and the arguments that its schema marks as written."""
    written = [
        (position, argument.name)
        for position, argument in enumerate(schema_of(op).arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return Signature(
        name=str(op),
        positions=tuple(position for position, _ in written),
        keywords=tuple(name for _, name in written),
    )


NO_DEFAULT: Final = object()
"""Stands for the default of an argument that has none."""


@cache
def argument_schema(op: OpOverload) -> tuple[tuple[str, str, Any], ...]:
    """(name, type, default) of each argument, in order; ``NO_DEFAULT`` where it has none."""
    return tuple(
        (a.name, str(a.type), a.default_value if a.has_default_value() else NO_DEFAULT) for a in schema_of(op).arguments
    )


@cache
def argument_names(op: OpOverload) -> tuple[str, ...]:
    """The names of its arguments, in order."""
    return tuple(argument.name for argument in schema_of(op).arguments)


def written_arguments(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments of this call that the operator writes, lists included, in schema order."""
    facts = signature(op)
    written: list[Any] = []
    if facts.name in _UNDECLARED:
        positions, flag = _UNDECLARED[facts.name]
        names = argument_names(op)
        arguments = dict(zip(names, args, strict=False)) | kwargs
        if flag is None or arguments.get(names[flag]):
            written += [arguments[names[position]] for position in positions if names[position] in arguments]
    for position, name in zip(facts.positions, facts.keywords, strict=True):
        if position < len(args):
            written.append(args[position])
        elif name in kwargs:
            written.append(kwargs[name])
    return written
