"""Faults: which rule is broken, where, and by which op. Checks return them as values; the caller raises."""

from dataclasses import dataclass, fields
from typing import Final

from tmmu.errors import Field

U64_MAX: Final = 2**64 - 1
MAX_LISTED_FAULTS: Final = 8
"""A broken plan of a million buffers may have as many faults; eight tell a person enough, ``count`` says the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One broken rule. ``bytes`` is a half-open range, ``by`` the op that did it; ``None``: does not apply."""

    # The field names are the keys of the error record that --json prints.
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
    """The fields that apply, as an error carries them."""
    record: dict[str, Field] = {}
    for column in fields(Fault):
        content = getattr(fault, column.name)
        if content is not None:
            record[column.name] = list(content) if isinstance(content, tuple) else content
    return record


def faults_field(faults: tuple[Fault, ...]) -> list[Field]:
    """The first ``MAX_LISTED_FAULTS``, as an error carries them."""
    return [fault_record(fault) for fault in faults[:MAX_LISTED_FAULTS]]


def headline(faults: tuple[Fault, ...]) -> str:
    """The first fault, and how many there are beside it."""
    more = len(faults) - 1
    return str(faults[0]) + (f"; and {more} more fault{'s' if more > 1 else ''}" if more else "")
