"""What an operator's schema says about its arguments, looked up once per overload."""

from dataclasses import dataclass
from functools import cache

from torch._ops import OpOverload


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """``mutated`` are the argument positions and names that the operator writes."""

    name: str
    positions: tuple[int, ...]
    keywords: tuple[str, ...]

    @property
    def mutates(self) -> bool:
        """Whether any argument is written."""
        return bool(self.positions or self.keywords)


@cache
def signature(op: OpOverload) -> Signature:
    """The operator's printed name and the arguments that its schema marks as written."""
    written = [
        (position, argument.name)
        for position, argument in enumerate(op._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return Signature(
        name=str(op),
        positions=tuple(position for position, _ in written),
        keywords=tuple(name for _, name in written),
    )


def written_arguments(op: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> list[object]:
    """The arguments of this call that the operator writes, lists included, in schema order."""
    facts = signature(op)
    found: list[object] = []
    for position, name in zip(facts.positions, facts.keywords, strict=True):
        if position < len(args):
            found.append(args[position])
        elif name in kwargs:
            found.append(kwargs[name])
    return found
