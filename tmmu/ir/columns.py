"""What a file says, column by column: whole, of the right type, in range, or ``PlanCorrupt`` that says where."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, NoReturn, TypeVar, cast

from tmmu.errors import PlanCorrupt
from tmmu.ir.fault import U64_MAX

AGAIN: Final = "make the file again with tmmu plan"

N = TypeVar("N", bound=int)
"""Which id or unit the numbers of a column are is for the caller to say, by the type that it expects."""


def table(value: object, where: str, keys: Iterable[str]) -> Mapping[str, object]:
    """A map of exactly these keys."""
    if not isinstance(value, dict):
        refuse(where, f"is {kind(value)}, not a map")
    wanted = tuple(keys)
    for key in value:
        if key not in wanted:
            refuse(where, f"has the unknown key {key!r:.80}")
    for key in wanted:
        if key not in value:
            refuse(where, f"lacks the key {key!r}")
    return value


def columns(value: object, where: str, keys: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """The columns of a map of exactly these keys, numbers all."""
    return {name: uints(column, f"{where}.{name}") for name, column in table(value, where, keys).items()}


def uints(value: object, where: str) -> tuple[N, ...]:
    """An array of unsigned 64-bit numbers."""
    column = cast("list[N]", _column(value, where, int))
    _in_range(column, where)
    return tuple(column)


def texts(value: object, where: str) -> tuple[str, ...]:
    """An array of texts."""
    return tuple(cast("list[str]", _column(value, where, str)))


def bools(value: object, where: str) -> tuple[bool, ...]:
    """An array of truth values."""
    return tuple(cast("list[bool]", _column(value, where, bool)))


def rows(value: object, where: str) -> tuple[tuple[N, ...], ...]:
    """An array of arrays of unsigned 64-bit numbers."""
    lists = cast("list[list[N]]", _column(value, where, list))
    flat = list(chain.from_iterable(lists))
    _column(flat, where, int)
    _in_range(flat, where)
    return tuple(map(tuple, lists))


def pairs(value: object, where: str) -> tuple[tuple[tuple[N, N], ...], ...]:
    """An array of arrays of pairs of such numbers."""
    lists = cast("list[list[object]]", _column(value, where, list))
    flat: tuple[tuple[N, ...], ...] = rows(list(chain.from_iterable(lists)), where)
    if set(map(len, flat)) - {2}:
        refuse(where, "holds what is not a pair")
    each = iter(cast("tuple[tuple[N, N], ...]", flat))
    return tuple(tuple(next(each) for _ in row) for row in lists)


def _column(value: object, where: str, wanted: type) -> list[object]:
    """An array whose items all have exactly this type."""
    if not isinstance(value, list):
        refuse(where, f"is {kind(value)}, not an array")
    others = set(map(type, value)) - {wanted}
    if others:
        refuse(where, f"holds {', '.join(sorted(other.__name__ for other in others))}, not only {wanted.__name__}")
    return value


def _in_range(column: Sequence[int], where: str) -> None:
    if column and not 0 <= min(column) <= max(column) <= U64_MAX:
        refuse(where, "leaves the unsigned 64-bit numbers")


def text(value: object, where: str) -> str:
    """A text."""
    if not isinstance(value, str):
        refuse(where, f"is {kind(value)}, not text")
    return value


def fixed(value: object, where: str, length: int) -> bytes:
    """Exactly so many bytes."""
    if not isinstance(value, bytes) or len(value) != length:
        refuse(where, f"is {kind(value)}, not {length} bytes")
    return value


def kind(value: object) -> str:
    """What it is, for a message."""
    return f"{len(value)} bytes" if isinstance(value, bytes) else f"a {type(value).__name__}"


def refuse(where: str, what: str) -> NoReturn:
    """Raises ``PlanCorrupt``."""
    raise PlanCorrupt(f"{where}: {what}", fix=AGAIN, where=where)
