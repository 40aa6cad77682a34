"""What an operator's schema says about its arguments, looked up once per overload."""

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from tmmu.torch_private import OpOverload, schema_of

_UNDECLARED: Final = {
    "aten.native_batch_norm.default": ((3, 4), 5),
    "aten.cudnn_batch_norm.default": ((3, 4), 5),
    "aten.miopen_batch_norm.default": ((3, 4), 5),
    "aten.batch_norm_update_stats.default": ((1, 2), None),
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


def written_arguments(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments of this call that the operator writes, lists included, in schema order."""
    facts = signature(op)
    written: list[Any] = []
    if facts.name in _UNDECLARED:
        positions, flag = _UNDECLARED[facts.name]
        if flag is None or (flag < len(args) and args[flag]):
            written += [args[position] for position in positions if position < len(args)]
    for position, name in zip(facts.positions, facts.keywords, strict=True):
        if position < len(args):
            written.append(args[position])
        elif name in kwargs:
            written.append(kwargs[name])
    return written
