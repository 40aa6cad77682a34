"""CSV exchange format of packing problems: ``id,lower,upper,size[,alignment][,offset]``, in and out."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn, TextIO

from tmmu.codec.files import open_ordinary
from tmmu.errors import AlignmentViolation, AllocationOverflow, InvalidConfig, UserError
from tmmu.ir.fault import U64_MAX
from tmmu.ir.problem import PackProblem
from tmmu.judge.packing import overlapping_pairs

REQUIRED: Final = ("id", "lower", "upper", "size")
COLUMNS: Final = (*REQUIRED, "alignment", "offset")
LINE_MAX: Final = 1 << 16
"""Characters of a line: many times what six numbers and a name need."""
ROWS_MAX: Final = 1 << 24
"""Rows of a file: what fits the memory of a small machine."""
HEADER_EXAMPLE: Final = "begin with a line such as id,lower,upper,size"


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """Rows of a file, unchanged and in file order, and their packing problem, whose items are sorted by id.

    ``row_of``: per item of ``problem``, its row.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    row_of: tuple[int, ...]
    problem: PackProblem


def read_intervals(path: Path, *, alignment: int = 1) -> Intervals:
    """The intervals of a file; ``alignment`` is that of rows that name none. Every refusal names the line.

    ``InvalidConfig``, ``AllocationOverflow`` or ``AlignmentViolation``. Memory linear in the file.
    """
    try:
        with open_ordinary(path) as file, io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
            return _parse_intervals(path, text, alignment)
    except UnicodeDecodeError as error:
        raise InvalidConfig(f"{path}: not a text in UTF-8", fix="name a CSV file") from error


def _parse_intervals(path: Path, file: TextIO, alignment: int) -> Intervals:
    reader = csv.reader(_lines(path, file), strict=True)
    table = _Table(path=path, rows=[], lines=[])
    try:
        header = next((tuple(row) for row in reader if row), ())
        column_of = _column_indices(path, reader.line_num, header)
        for row in reader:
            if row:
                table.add(tuple(row), reader.line_num, len(header))
    except csv.Error as error:
        table.refuse(reader.line_num, f"not a line of CSV: {error}", "quote it as CSV asks")
    return table.intervals(header, column_of, alignment)


def _lines(path: Path, file: TextIO) -> Iterator[str]:
    """Lines of the file; refuses zero bytes and lines above ``LINE_MAX`` characters before csv buffers them."""
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


def _column_indices(path: Path, line: int, header: Sequence[str]) -> dict[str, int]:
    """Per known column, its index in the header."""
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

    def refuse(self, line: int, reason: str, fix: str, kind: type[UserError] = InvalidConfig) -> NoReturn:
        raise kind(f"{self.path}:{line}: {reason}", fix=fix, path=str(self.path), line=line)

    def intervals(self, header: tuple[str, ...], column_of: dict[str, int], alignment: int) -> Intervals:
        ids = [row[column_of["id"]] for row in self.rows]
        self._demand_distinct(ids)
        order = sorted(range(len(ids)), key=ids.__getitem__)
        problem = PackProblem(
            size=self._column(column_of, "size", order),
            birth=self._column(column_of, "lower", order),
            death=self._column(column_of, "upper", order),
            alignment=self._column(column_of, "alignment", order, missing=alignment),
            fixed=self._column(column_of, "offset", order, missing=-1),
        )
        self._demand_valid_rows(problem, order, ids)
        return Intervals(header=header, rows=tuple(self.rows), row_of=tuple(order), problem=problem)

    def _demand_distinct(self, ids: Sequence[str]) -> None:
        line_of_id: dict[str, int] = {}
        for line, name in zip(self.lines, ids, strict=True):
            if name in line_of_id:
                self.refuse(
                    line, f"id {name!r} is on line {line_of_id[name]} as well", "give every row an id of its own"
                )
            line_of_id[name] = line

    def _column(
        self, column_of: dict[str, int], name: str, order: Sequence[int], missing: int | None = None
    ) -> tuple[int, ...]:
        """The numbers of a column; ``missing`` where it is optional and a cell is empty."""
        if name not in column_of:
            return (missing or 0,) * len(order)
        column = column_of[name]
        return tuple(self._number(self.rows[row][column], row, name, missing) for row in order)

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

    def _demand_valid_rows(self, problem: PackProblem, order: Sequence[int], ids: Sequence[str]) -> None:
        for item, row in enumerate(order):
            line = self.lines[row]
            if problem.death[item] < problem.birth[item]:
                reason = f"upper {problem.death[item]} is below lower {problem.birth[item]}"
                self.refuse(line, reason, "a span is half-open: lower up to, not including, upper")
            alignment, offset = problem.alignment[item], problem.fixed[item]
            if alignment < 1 or alignment & (alignment - 1):
                self.refuse(line, f"alignment {alignment} is no power of two", "use 1, 2, 4, 8, …", AlignmentViolation)
            if offset > 0 and offset % alignment:
                reason = f"offset {offset} is no multiple of {alignment}"
                self.refuse(line, reason, "move it, or lower its alignment", AlignmentViolation)
            if offset + problem.size[item] > U64_MAX:
                self.refuse(line, "offset and size pass 64 bits", "write them in larger units", AllocationOverflow)
        self._demand_disjoint(problem, order, ids)

    def _demand_disjoint(self, problem: PackProblem, order: Sequence[int], ids: Sequence[str]) -> None:
        """Fixed offsets do not conflict with each other."""
        fixed_items = [item for item, offset in enumerate(problem.fixed) if offset >= 0]
        fixed_problem = PackProblem(
            size=tuple(problem.size[i] for i in fixed_items),
            birth=tuple(problem.birth[i] for i in fixed_items),
            death=tuple(problem.death[i] for i in fixed_items),
            alignment=(1,) * len(fixed_items),
            fixed=tuple(problem.fixed[i] for i in fixed_items),
        )
        for pair in overlapping_pairs(fixed_problem, fixed_problem.fixed):
            first, second = sorted(order[fixed_items[index]] for index in pair)
            names = f"{ids[second]!r} and {ids[first]!r} of line {self.lines[first]}"
            self.refuse(self.lines[second], f"{names} are given bytes in common while both live", "move one of them")


def intervals_with_offsets(intervals: Intervals, offset: Iterable[int]) -> bytes:
    """The file again, each row with its offset: in the column ``offset``, appended where there is none."""
    names = [name.strip().lower() for name in intervals.header]
    column = names.index("offset") if "offset" in names else len(names)
    by_row = [""] * len(intervals.rows)
    for row, item_offset in zip(intervals.row_of, offset, strict=True):
        by_row[row] = str(item_offset)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(intervals.header if column < len(names) else (*intervals.header, "offset"))
    writer.writerows(
        (*row[:column], cell, *row[column + 1 :]) for row, cell in zip(intervals.rows, by_row, strict=True)
    )
    return text.getvalue().encode("utf-8")
