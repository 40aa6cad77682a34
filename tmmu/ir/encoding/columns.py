"""The columns of a file: written by name; read back complete, of the right type and in range, or ``PlanCorrupt``.

``key`` is the path of what is read inside the file, as ``buffers.offset``. Arrays are emptied while they are read: a
column is never there twice.
"""

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, NoReturn, TypeVar, cast

from tmmu.errors import PlanCorrupt
from tmmu.ir.encoding.cbor import FIX
from tmmu.ir.fault import U64_MAX

T = TypeVar("T")
N = TypeVar("N", bound=int)
"""The id or unit that a column of numbers holds: the caller says which, by the type that it expects."""


def column_map(table: Any) -> dict[str, object]:
    """The columns of a table with slots, by name: its field names are keys of the file, and renaming one changes it."""
    return {name: getattr(table, name) for name in table.__slots__}


def table(value: object, key: str, columns: Iterable[str]) -> Mapping[str, object]:
    """A map of exactly these columns."""
    if not isinstance(value, dict):
        refuse(key, f"is {describe(value)}, not a map")
    expected = tuple(columns)
    for column in value:
        if column not in expected:
            refuse(key, f"has the unknown key {column!r:.80}")
    for column in expected:
        if column not in value:
            refuse(key, f"lacks the key {column!r}")
    return value


def uint_columns(value: object, key: str, columns: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    """A map of exactly these columns, each of unsigned 64-bit numbers."""
    return {name: uints(column, f"{key}.{name}") for name, column in table(value, key, columns).items()}


def uints(value: object, key: str) -> tuple[N, ...]:
    """An array of unsigned 64-bit numbers."""
    column = cast("list[N]", _column(value, key, int))
    _require_u64(column, key)
    return _emptied(column)


def texts(value: object, key: str) -> tuple[str, ...]:
    """An array of texts."""
    return _emptied(cast("list[str]", _column(value, key, str)))


def byte_strings(value: object, key: str) -> tuple[bytes, ...]:
    """An array of byte strings."""
    return _emptied(cast("list[bytes]", _column(value, key, bytes)))


def byte_string_rows(value: object, key: str) -> tuple[tuple[bytes, ...], ...]:
    """An array of arrays of byte strings."""
    lists = cast("list[list[bytes] | tuple[bytes, ...]]", _column(value, key, list))
    _require_type(chain.from_iterable(lists), key, bytes)
    for index, row in enumerate(lists):
        lists[index] = tuple(row)
    return cast("tuple[tuple[bytes, ...], ...]", _emptied(lists))


def bools(value: object, key: str) -> tuple[bool, ...]:
    """An array of booleans."""
    return _emptied(cast("list[bool]", _column(value, key, bool)))


def rows(value: object, key: str) -> tuple[tuple[N, ...], ...]:
    """An array of arrays of unsigned 64-bit numbers."""
    lists = cast("list[list[N] | tuple[N, ...]]", _column(value, key, list))
    _require_type(chain.from_iterable(lists), key, int)
    numbers = chain.from_iterable(lists)
    _require_u64(numbers, key)
    for index, row in enumerate(lists):
        lists[index] = tuple(row)
    return cast("tuple[tuple[N, ...], ...]", _emptied(lists))


def pairs(value: object, key: str) -> tuple[tuple[tuple[N, N], ...], ...]:
    """An array of arrays of pairs of unsigned 64-bit numbers."""
    lists = cast("list[list[object]]", _column(value, key, list))
    flat: tuple[tuple[N, ...], ...] = rows(list(chain.from_iterable(lists)), key)
    if set(map(len, flat)) - {2}:
        refuse(key, "holds what is not a pair")
    remaining = iter(cast("tuple[tuple[N, N], ...]", flat))
    return tuple(tuple(next(remaining) for _ in row) for row in lists)


def _column(value: object, key: str, cell_type: type) -> list[object]:
    """An array whose items have exactly this type: a boolean is no integer."""
    if not isinstance(value, list):
        refuse(key, f"is {describe(value)}, not an array")
    _require_type(value, key, cell_type)
    return value


def _require_type(cells: Iterable[object], key: str, cell_type: type) -> None:
    foreign = sorted(kind.__name__ for kind in set(map(type, cells)) - {cell_type})
    if foreign:
        refuse(key, f"holds {', '.join(foreign)}, not only {cell_type.__name__}")


def _emptied(column: list[T]) -> tuple[T, ...]:
    """The cells as a tuple; the list is empty then."""
    cells = tuple(column)
    column.clear()
    return cells


def _require_u64(numbers: Iterable[int], key: str) -> None:
    if any(number < 0 or number > U64_MAX for number in numbers):
        refuse(key, "leaves the unsigned 64-bit numbers")


def text(value: object, key: str) -> str:
    """A text."""
    if not isinstance(value, str):
        refuse(key, f"is {describe(value)}, not text")
    return value


def byte_string(value: object, key: str, length: int) -> bytes:
    """A byte string of exactly ``length`` bytes."""
    if not isinstance(value, bytes) or len(value) != length:
        refuse(key, f"is {describe(value)}, not {length} bytes")
    return value


def describe(value: object) -> str:
    """The type of ``value`` for a message, with the length of a byte string."""
    return f"{len(value)} bytes" if isinstance(value, bytes) else f"a {type(value).__name__}"


def refuse(key: str, problem: str) -> NoReturn:
    """Raises ``PlanCorrupt`` with the key as its field ``where``."""
    raise PlanCorrupt(f"{key}: {problem}", fix=FIX, where=key)
