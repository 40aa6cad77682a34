"""The exchange format of packing: CSV with ``id,lower,upper,size[,alignment][,offset]``, in and out."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn, TextIO

from tmmu.errors import AlignmentViolation, AllocationOverflow, InvalidConfig, UserError
from tmmu.ir.fault import U64_MAX
from tmmu.ir.problem import PackProblem
from tmmu.judge.packing import shared_bytes

REQUIRED: Final = ("id", "lower", "upper", "size")
COLUMNS: Final = (*REQUIRED, "alignment", "offset")
LINE_MAX: Final = 1 << 16
"""Characters of a line: many times what six numbers and a name need."""
ROWS_MAX: Final = 1 << 24
"""Rows of a file: what fits the memory of a small machine."""
HEADER_EXAMPLE: Final = "begin with a line such as id,lower,upper,size"


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """A file's rows as they are, in their order, and the problem that they state, in the order of their ids."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    row_of: tuple[int, ...]
    problem: PackProblem


def read_intervals(path: Path, *, alignment: int = 1) -> Intervals:
    """The intervals of a file; ``alignment`` is that of rows that name none. Every refusal names the line.

    ``InvalidConfig``, ``AllocationOverflow`` or ``AlignmentViolation``. Memory linear in the file.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _intervals(path, file, alignment)
    except UnicodeDecodeError as error:
        raise InvalidConfig(f"{path}: not a text in UTF-8", fix="name a CSV file") from error
    except IsADirectoryError as error:
        raise InvalidConfig(f"{path}: it is a folder", fix="name a CSV file") from error


def _intervals(path: Path, file: TextIO, alignment: int) -> Intervals:
    reader = csv.reader(_lines(path, file), strict=True)
    table = _Table(path=path, rows=[], lines=[])
    try:
        header = next((tuple(row) for row in reader if row), ())
        place = _columns(path, reader.line_num, header)
        for row in reader:
            if row:
                table.add(tuple(row), reader.line_num, len(header))
    except csv.Error as error:
        table.refuse(reader.line_num, f"not a line of CSV: {error}", "quote it as CSV asks")
    return table.intervals(header, place, alignment)


def _lines(path: Path, file: TextIO) -> Iterator[str]:
    """Each line, none so long or so strange that it cannot be one of such a file."""
    number = 0
    while line := file.readline(LINE_MAX + 1):
        number += 1
        if "\0" in line:
            raise InvalidConfig(f"{path}:{number}: a zero byte: this is no text", fix="name a CSV file")
        if len(line) > LINE_MAX:
            raise InvalidConfig(
                f"{path}:{number}: more than {LINE_MAX} characters", fix="name a CSV file of short lines"
            )
        yield line


def _columns(path: Path, line: int, header: Sequence[str]) -> dict[str, int]:
    """Where each known column is."""
    names = [name.strip().lower() for name in header]
    if not names:
        raise InvalidConfig(f"{path}: the file is empty", fix=HEADER_EXAMPLE)
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        raise InvalidConfig(f"{path}:{line}: no column {', '.join(missing)} in the header", fix=HEADER_EXAMPLE)
    for name in COLUMNS:
        if names.count(name) > 1:
            raise InvalidConfig(f"{path}:{line}: column {name} is there twice", fix="keep one of them")
    return {name: names.index(name) for name in COLUMNS if name in names}


@dataclass(slots=True, kw_only=True)
class _Table:
    """Rows of one file with the line that each ends on; refuses by that line."""

    path: Path
    rows: list[tuple[str, ...]]
    lines: list[int]

    def add(self, row: tuple[str, ...], line: int, width: int) -> None:
        if len(row) != width:
            self.refuse(line, f"{len(row)} cells under {width} columns", "give every row as many cells as the header")
        if len(self.rows) >= ROWS_MAX:
            self.refuse(line, f"more than {ROWS_MAX} rows", "pack a part of them at a time")
        self.rows.append(row)
        self.lines.append(line)

    def refuse(self, line: int, what: str, fix: str, kind: type[UserError] = InvalidConfig) -> NoReturn:
        raise kind(f"{self.path}:{line}: {what}", fix=fix, path=str(self.path), line=line)

    def intervals(self, header: tuple[str, ...], place: dict[str, int], alignment: int) -> Intervals:
        ids = [row[place["id"]] for row in self.rows]
        self._demand_distinct(ids)
        order = sorted(range(len(ids)), key=ids.__getitem__)
        problem = PackProblem(
            size=self._column(place, "size", order),
            birth=self._column(place, "lower", order),
            death=self._column(place, "upper", order),
            alignment=self._column(place, "alignment", order, missing=alignment),
            fixed=self._column(place, "offset", order, missing=-1),
        )
        self._demand_sense(problem, order, ids)
        return Intervals(header=header, rows=tuple(self.rows), row_of=tuple(order), problem=problem)

    def _demand_distinct(self, ids: Sequence[str]) -> None:
        seen: dict[str, int] = {}
        for line, name in zip(self.lines, ids, strict=True):
            if name in seen:
                self.refuse(line, f"id {name!r} is on line {seen[name]} as well", "give every row an id of its own")
            seen[name] = line

    def _column(
        self, place: dict[str, int], name: str, order: Sequence[int], missing: int | None = None
    ) -> tuple[int, ...]:
        """The numbers of a column; ``missing`` where it is optional and a cell is empty."""
        if name not in place:
            return (missing or 0,) * len(order)
        at = place[name]
        return tuple(self._number(self.rows[row][at], row, name, missing) for row in order)

    def _number(self, text: str, row: int, name: str, missing: int | None) -> int:
        digits = text.strip(" \t")
        if not digits and missing is not None:
            return missing
        if not (digits.isascii() and digits.isdigit()):
            shown = digits if len(digits) <= 40 else digits[:40] + "…"
            self.refuse(self.lines[row], f"{name} {shown!r} is not a number", "write a whole number of 0 or more")
        digits = digits.lstrip("0")
        if len(digits) > 20 or int(digits or "0") > U64_MAX:
            fix = "write it in larger units"
            self.refuse(self.lines[row], f"{name} does not fit in 64 bits", fix, AllocationOverflow)
        return int(digits or "0")

    def _demand_sense(self, problem: PackProblem, order: Sequence[int], ids: Sequence[str]) -> None:
        for item, row in enumerate(order):
            line = self.lines[row]
            if problem.death[item] < problem.birth[item]:
                what = f"upper {problem.death[item]} is below lower {problem.birth[item]}"
                self.refuse(line, what, "a span is half-open: lower up to, not including, upper")
            step, given = problem.alignment[item], problem.fixed[item]
            if step < 1 or step & (step - 1):
                self.refuse(line, f"alignment {step} is no power of two", "use 1, 2, 4, 8, …", AlignmentViolation)
            if given > 0 and given % step:
                what = f"offset {given} is no multiple of {step}"
                self.refuse(line, what, "move it, or lower its alignment", AlignmentViolation)
            if given + problem.size[item] > U64_MAX:
                self.refuse(line, "offset and size pass 64 bits", "write them in larger units", AllocationOverflow)
        self._demand_apart(problem, order, ids)

    def _demand_apart(self, problem: PackProblem, order: Sequence[int], ids: Sequence[str]) -> None:
        """Offsets that are given do not conflict among themselves."""
        given = [item for item, offset in enumerate(problem.fixed) if offset >= 0]
        held = PackProblem(
            size=tuple(problem.size[i] for i in given),
            birth=tuple(problem.birth[i] for i in given),
            death=tuple(problem.death[i] for i in given),
            alignment=(1,) * len(given),
            fixed=tuple(problem.fixed[i] for i in given),
        )
        for pair in shared_bytes(held, held.fixed):
            one, other = sorted(order[given[at]] for at in pair)
            what = (
                f"{ids[other]!r} and {ids[one]!r} of line {self.lines[one]} are given bytes in common while both live"
            )
            self.refuse(self.lines[other], what, "move one of them")


def intervals_with_offsets(intervals: Intervals, offset: Iterable[int]) -> bytes:
    """The file again, each row with its offset: in the column ``offset``, appended where there is none."""
    names = [name.strip().lower() for name in intervals.header]
    at = names.index("offset") if "offset" in names else len(names)
    by_row = [""] * len(intervals.rows)
    for row, found in zip(intervals.row_of, offset, strict=True):
        by_row[row] = str(found)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(intervals.header if at < len(names) else (*intervals.header, "offset"))
    writer.writerows((*row[:at], found, *row[at + 1 :]) for row, found in zip(intervals.rows, by_row, strict=True))
    return text.getvalue().encode("utf-8")
