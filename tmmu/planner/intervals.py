"""CSV exchange format of packing problems: ``id,lower,upper,size[,alignment][,offset]``, in and out."""

import csv
import io
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final, NoReturn

from tmmu.codec.files import read_file
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
    """A file as it is, and its packing problem, whose items are sorted by id.

    ``row_of``: per item of ``problem``, its row in the file.
    """

    header: tuple[str, ...]
    text: bytes
    row_of: tuple[int, ...]
    problem: PackProblem


def read_intervals(path: Path, *, alignment: int = 1) -> Intervals:
    """The intervals of a file; ``alignment`` is that of rows that name none. Every refusal names the line.

    ``InvalidConfig``, ``AllocationOverflow`` or ``AlignmentViolation``; ``PlanCorrupt`` for a file above 512 MiB. Of a
    row, numbers and its id are kept, in compact columns: at most 16 times the file's bytes and 64 MiB.
    """
    text = read_file(path)
    try:
        return _parse_intervals(path, text, alignment)
    except UnicodeDecodeError as error:
        raise InvalidConfig(f"{path}: not a text in UTF-8", fix="name a CSV file") from error


def _parse_intervals(path: Path, text: bytes, alignment: int) -> Intervals:
    reader = csv.reader(_lines(path, text), strict=True)
    table: _Table | None = None
    try:
        for row in reader:
            if not row:
                continue
            if table is None:
                column_of = _column_indices(path, reader.line_num, row)
                table = _Table(path=path, header=tuple(row), column_of=column_of, alignment=alignment)
            else:
                table.add(row, reader.line_num)
    except csv.Error as error:
        _refuse(path, reader.line_num, f"not a line of CSV: {error}", "quote it as CSV asks")
    if table is None:
        raise InvalidConfig(f"{path}: the file is empty", fix=HEADER_EXAMPLE)
    return table.intervals(text)


def _rows(text: bytes) -> Iterator[list[str]]:
    """Rows of a text that was read before, the header first."""
    return (row for row in csv.reader(_decoded(text), strict=True) if row)


def _decoded(text: bytes) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(text), encoding="utf-8-sig", newline="")


def _lines(path: Path, text: bytes) -> Iterator[str]:
    """Lines of the file; refuses zero bytes and lines above ``LINE_MAX`` characters before csv buffers them."""
    number, file = 0, _decoded(text)
    while line := file.readline(LINE_MAX + 1):
        number += 1
        if "\0" in line:
            raise InvalidConfig(f"{path}:{number}: a zero byte: this is no text", fix="name a CSV file")
        if len(line) > LINE_MAX:
            raise InvalidConfig(
                f"{path}:{number}: more than {LINE_MAX} characters", fix="name a CSV file of short lines"
            )
        yield line


def _refuse(path: Path, line: int, reason: str, fix: str, kind: type[UserError] = InvalidConfig) -> NoReturn:
    raise kind(f"{path}:{line}: {reason}", fix=fix, path=str(path), line=line)


def _column_indices(path: Path, line: int, header: Sequence[str]) -> dict[str, int]:
    """Per known column, its index in the header."""
    names = [name.strip().lower() for name in header]
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        raise InvalidConfig(f"{path}:{line}: no column {', '.join(missing)} in the header", fix=HEADER_EXAMPLE)
    for name in COLUMNS:
        if names.count(name) > 1:
            raise InvalidConfig(f"{path}:{line}: column {name} is there twice", fix="keep one of them")
    return {name: names.index(name) for name in COLUMNS if name in names}


def _unsigned() -> "array[int]":
    return array("Q")


@dataclass(slots=True, kw_only=True)
class _Table:
    """Ids and numbers of one file's rows, with the line that each ends on; refuses by that line.

    ``fixed`` is one more than the offset, 0 where there is none.
    """

    path: Path
    header: tuple[str, ...]
    column_of: dict[str, int]
    alignment: int
    ids: list[str] = field(default_factory=list)
    lines: "array[int]" = field(default_factory=_unsigned)
    lower: "array[int]" = field(default_factory=_unsigned)
    upper: "array[int]" = field(default_factory=_unsigned)
    size: "array[int]" = field(default_factory=_unsigned)
    alignments: "array[int]" = field(default_factory=_unsigned)
    fixed: "array[int]" = field(default_factory=_unsigned)

    def add(self, row: Sequence[str], line: int) -> None:
        if len(row) != len(self.header):
            what = f"{len(row)} cells under {len(self.header)} columns"
            self.refuse(line, what, "give every row as many cells as the header")
        if len(self.ids) >= ROWS_MAX:
            self.refuse(line, f"more than {ROWS_MAX} rows", "pack a part of them at a time")
        self.ids.append(row[self.column_of["id"]])
        self.lines.append(line)
        self.lower.append(self._number(row, line, "lower"))
        self.upper.append(self._number(row, line, "upper"))
        self.size.append(self._number(row, line, "size"))
        self.alignments.append(self._number(row, line, "alignment", missing=self.alignment))
        offset = self._number(row, line, "offset", missing=-1)
        if offset == U64_MAX:
            self.refuse(line, "offset and size pass 64 bits", "write them in larger units", AllocationOverflow)
        self.fixed.append(offset + 1)

    def refuse(self, line: int, reason: str, fix: str, kind: type[UserError] = InvalidConfig) -> NoReturn:
        _refuse(self.path, line, reason, fix, kind)

    def intervals(self, text: bytes) -> Intervals:
        order = sorted(range(len(self.ids)), key=self.ids.__getitem__)
        self._demand_distinct(order)
        problem = PackProblem(
            size=tuple(map(self.size.__getitem__, order)),
            birth=tuple(map(self.lower.__getitem__, order)),
            death=tuple(map(self.upper.__getitem__, order)),
            alignment=tuple(map(self.alignments.__getitem__, order)),
            fixed=tuple(self.fixed[row] - 1 for row in order),
        )
        self._demand_valid_rows(problem, order, self.ids)
        return Intervals(header=self.header, text=text, row_of=tuple(order), problem=problem)

    def _demand_distinct(self, order: Sequence[int]) -> None:
        """No two rows have one id; of several pairs, that of the earliest second row is named."""
        twins = [pair for pair in pairwise(order) if self.ids[pair[0]] == self.ids[pair[1]]]
        if twins:
            first, second = min(twins, key=lambda pair: pair[1])
            reason = f"id {self.ids[second]!r} is on line {self.lines[first]} as well"
            self.refuse(self.lines[second], reason, "give every row an id of its own")

    def _number(self, row: Sequence[str], line: int, name: str, missing: int | None = None) -> int:
        """A cell's number; ``missing`` where it is optional, and empty or without a column."""
        digits = row[self.column_of[name]].strip(" \t") if name in self.column_of else ""
        if not digits and missing is not None:
            return missing
        if not (digits.isascii() and digits.isdigit()):
            shown = digits if len(digits) <= 40 else digits[:40] + "…"
            self.refuse(line, f"{name} {shown!r} is not a number", "write a whole number of 0 or more")
        digits = digits.lstrip("0")
        if len(digits) > 20 or int(digits or "0") > U64_MAX:
            self.refuse(line, f"{name} does not fit in 64 bits", "write it in larger units", AllocationOverflow)
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
    by_row = array("Q", bytes(8 * len(intervals.row_of)))
    for row, item_offset in zip(intervals.row_of, offset, strict=True):
        by_row[row] = item_offset
    rows = _rows(intervals.text)
    next(rows)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(intervals.header if column < len(names) else (*intervals.header, "offset"))
    writer.writerows((*row[:column], cell, *row[column + 1 :]) for row, cell in zip(rows, by_row, strict=True))
    return text.getvalue().encode("utf-8")
