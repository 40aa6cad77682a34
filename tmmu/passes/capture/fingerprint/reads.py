"""Which global names code reads, and what is done with them."""

import builtins
import dis
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any, Final

_ATTRIBUTE: Final = ("LOAD_ATTR", "LOAD_METHOD")
_GLOBAL: Final = ("LOAD_GLOBAL", "LOAD_NAME")
UNBOUND: Final = object()


@dataclass(frozen=True, slots=True)
class Read:
    """A global name and the attributes that are taken of it at once; whether the last is ``called`` and no more, or
    only ``tested`` for what it holds.

    An import while code runs is ``import``, the module, and the names that are taken of it.
    """

    names: tuple[str, ...]
    called: bool = False
    tested: bool = False


def reads(code: CodeType) -> Iterator[Read]:
    """What code reads, in its order; nested code included."""
    yield from own_reads(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from reads(constant)


def own_reads(code: CodeType) -> Iterator[Read]:
    """What code itself reads, without the code nested in it."""
    names: list[str] = []
    called = False
    before: list[Any] = [0, None]
    for step in steps(code):
        if step.opname in _ATTRIBUTE and names:
            names.append(step.argval)
            called = _is_call(step)
            continue
        if names:
            yield Read(tuple(names), called, step.opname == "CONTAINS_OP")
        names = [step.argval] if step.opname in _GLOBAL else []
        called = _is_call(step)
        if step.opname == "IMPORT_NAME":
            level, taken = before
            yield Read(("import", "." * level + step.argval, *(taken or ())))
        before = [before[1], step.argval]


def steps(code: CodeType) -> Iterator[dis.Instruction]:
    """The instructions, without those that only lengthen an argument."""
    return (step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG")


def _is_call(step: dis.Instruction) -> bool:
    """Whether what is loaded stands where a call finds its function."""
    marked = step.opname == "LOAD_GLOBAL" or (step.opname == "LOAD_ATTR" and "LOAD_METHOD" not in dis.opmap)
    return step.opname == "LOAD_METHOD" or (marked and bool((step.arg or 0) & 1))


def led_to(names: tuple[str, ...], scope: Mapping[str, Any]) -> tuple[Any, tuple[str, ...]]:
    """What a chain of names means: modules are passed through, up to the first other thing; and the names left."""
    value = scope.get(names[0], vars(builtins).get(names[0], UNBOUND))
    rest = names[1:]
    while rest and isinstance(value, ModuleType):
        value, rest = getattr(value, rest[0], UNBOUND), rest[1:]
    return value, rest
