"""A fault: one broken rule, where it is broken, and by whom. Checks return faults; the edge raises."""

from dataclasses import dataclass, fields
from typing import Final

from tmmu.errors import Field

U64_MAX: Final = 2**64 - 1
SHOWN: Final = 8
"""How many faults an error carries; a broken plan of a million buffers may have as many faults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One broken rule. ``bytes`` is a half-open range; ``by`` is the op that did it; absent fields do not apply."""

    rule: str
    what: str
    op: int | None = None
    value: int | None = None
    buffer: int | None = None
    arena: str | None = None
    bytes: tuple[int, int] | None = None
    by: int | None = None

    def __str__(self) -> str:
        return f"[{self.rule}] {self.what}"


def fault_record(fault: Fault) -> dict[str, Field]:
    """The fields that are present, as an error carries them."""
    record: dict[str, Field] = {}
    for column in fields(Fault):
        content = getattr(fault, column.name)
        if content is not None:
            record[column.name] = list(content) if isinstance(content, tuple) else content
    return record


def faults_field(faults: tuple[Fault, ...]) -> list[Field]:
    """The first faults, as an error carries them."""
    return [fault_record(fault) for fault in faults[:SHOWN]]


def headline(faults: tuple[Fault, ...]) -> str:
    """The first fault, and how many there are beside it."""
    more = len(faults) - 1
    return str(faults[0]) + (f"; and {more} more fault{'s' if more > 1 else ''}" if more else "")
