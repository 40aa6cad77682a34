"""Text and Markdown from a ``Report``: ASCII, and nothing that a model's names say is obeyed."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console

from tmmu.cli.output import render
from tmmu.cli.output.diff_report import DiffReport, Figure, Line, SideLine, blame
from tmmu.cli.printable import printable
from tmmu.compare.diff import Change
from tmmu.compare.diff_side import Moment

LISTED: Final = 10
"""How many causes, and how many weights, are listed."""
LINKED: Final = re.compile(r"[@#]|://|www\.|\bGH-\d|\b[0-9a-f]{7,40}\b", re.IGNORECASE)
"""Of what GitHub makes links and mentions in rendered text, where an escape is no longer seen."""
RIGHT: Final = frozenset({"before", "after", "change", "buffers", "share", "bytes", "size", "buffer"})
"""Columns of numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Sentences, then a table; either may be empty."""

    sentences: tuple[str, ...] = ()
    heading: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def print_report(out: Console, report: DiffReport) -> None:
    """The report for a terminal or a log."""
    print_sections(out, headline(report), sections(report))


def print_sections(out: Console, title: str, parts: Iterable[Section]) -> None:
    """A title, and under it each section."""
    out.print(printable(title), style="bold")
    for section in parts:
        justify = "".join(">" if name in RIGHT else "<" for name in section.heading)
        table = render.aligned(justify, section.heading, section.rows) if section.rows else []
        for lines in (section.sentences, table):
            render.print_lines(out, ["", *lines] if lines else [])


def markdown(report: DiffReport) -> Iterator[str]:
    """The report as a comment on a pull request."""
    about = f"{code(report.before.name)} to {code(report.after.name)}: {setting(report.before, report.after)}"
    return markdown_sections(_verdict(report), about, sections(report))


def markdown_sections(verdict: str, about: str, parts: Iterable[Section]) -> Iterator[str]:
    """A heading, what it is about, and each section."""
    yield f"### tmmu: {verdict}"
    yield ""
    yield about
    for section in parts:
        if section.sentences:
            yield from ("", *(f"{_escaped(line)}  " for line in section.sentences))
        if section.rows:
            yield from ("", *_table(section))


def sections(report: DiffReport) -> Iterator[Section]:
    """What there is to say: bytes, reasons, what is kept all the time, how all buffers fared."""
    yield Section(heading=("", "before", "after", "change", "share"), rows=tuple(listed_figures(report.figures)))
    if report.lines or report.peak.bytes:
        yield Section(
            sentences=tuple(_reasons(report)),
            heading=("change", "buffers", "why", "made by", "module", "source", "needed until"),
            rows=(*map(_line_cells, report.lines[:LISTED]), *_rest(report.lines)),
        )
    if report.kept:
        more = f", the largest {LISTED} of {len(report.kept)}" if len(report.kept) > LISTED else ""
        yield Section(
            sentences=(f"kept all the time{more}:",),
            heading=("change", "why", "role", "name"),
            rows=tuple(map(_kept_cells, report.kept[:LISTED])),
        )
    if any(one.buffers for one in report.fared):
        yield Section(sentences=(_fared(report),))


def headline(report: DiffReport) -> str:
    """What is compared, and the verdict."""
    return f"{report.before.name} -> {report.after.name}: {setting(report.before, report.after)}: {_verdict(report)}"


def _verdict(report: DiffReport) -> str:
    total = report.figures[0]
    if report.same:
        return "the same plan"
    if not any(one.change for one in report.figures):
        return "needs what it needed"
    return f"total {signed(total.change)}{_percent(total)}"


def setting(*sides: SideLine) -> str:
    """Mode, kernels and preset, of both where they differ."""
    texts = [f"{one.mode} on {one.target}, preset {one.preset}" for one in sides]
    return " -> ".join(dict.fromkeys(texts))


def listed_figures(figures: Sequence[Figure]) -> Iterator[tuple[str, ...]]:
    """A row for each that is anything, and always for the total."""
    return (_figure_cells(one) for one in figures if one.name == "total" or one.before or one.after)


def _figure_cells(one: Figure) -> tuple[str, ...]:
    indent = "" if one.name == "total" else "  " if not one.segment else "    "
    return (
        indent + one.name,
        render.size(one.before),
        render.size(one.after),
        signed(one.change),
        _percent(one).strip(" ()"),
    )


def signed(count: int) -> str:
    """Bytes more or less, or ``=``."""
    return "=" if not count else ("+" if count > 0 else "-") + render.size(abs(count))


def _percent(one: Figure) -> str:
    """The change in per cent, to a tenth; nothing where there was nothing, or where nothing changed."""
    if not one.change_ppm:
        return ""
    tenths = (abs(one.change_ppm) + 500) // 1000
    return f" ({'+' if one.change > 0 else '-'}{tenths // 10}.{tenths % 10} %)"


def _reasons(report: DiffReport) -> Iterator[str]:
    """Why the stack's peak moved: the line, the moments, and what no buffer accounts for."""
    peak, found = report.peak, blame(report)
    by = f", most of it by {_where(found[0])}: {signed(found[1])}" if found else ""
    yield f"stack {signed(peak.bytes)}{by}"
    up = peak.after == peak.fullest_after
    full, same = (peak.after, peak.before) if up else (peak.before, peak.after)
    yield f"fullest {'now' if up else 'before'} {_moment(full)}; {'before' if up else 'now'}, there, {_moment(same)}"
    if peak.fullest_before.position != peak.before.position:
        yield f"fullest before {_moment(peak.fullest_before)}"
    if peak.fullest_after.position != peak.after.position:
        yield f"fullest now {_moment(peak.fullest_after)}"
    if peak.moved:
        yield f"{peak.moved} buffers of {render.size(peak.moved_bytes)} moved into the peak as they were"
    if peak.packing:
        yield f"packing loses {signed(peak.packing)}"


def _where(line: Line) -> str:
    """A line of the model, and what it does there."""
    module = f" in {line.modules[0]}" if line.modules else ""
    more = f" and {len(line.modules) - 1} more" if len(line.modules) > 1 else ""
    source = (line.source or "an op without source") + (" (as it was)" if line.gone else "")
    return f"{source} ({line.op}{module}{more}: {line.why})"


def _moment(moment: Moment) -> str:
    at = ", ".join(text for text in (moment.op, moment.module, moment.source) if text)
    return f"at position {moment.position}{f' ({at})' if at else ''}: {render.size(moment.bytes)}"


def _line_cells(line: Line) -> tuple[str, ...]:
    more = f" and {len(line.modules) - 1} more" if len(line.modules) > 1 else ""
    module = f"{line.modules[0]}{more}" if line.modules else ""
    source = line.source + (" (as it was)" if line.gone else "")
    return signed(line.bytes), str(line.buffers), line.why, line.op, module, source, line.until


def _rest(lines: Sequence[Line]) -> list[tuple[str, ...]]:
    """The causes that are not listed, as one."""
    rest = lines[LISTED:]
    if not rest:
        return []
    return [
        (
            signed(sum(one.bytes for one in rest)),
            str(sum(one.buffers for one in rest)),
            f"{len(rest)} more",
            "",
            "",
            "",
            "",
        )
    ]


def _kept_cells(change: Change) -> tuple[str, ...]:
    origin = change.origin
    return signed(change.bytes), change.why, origin.role, origin.name or f"buffer {origin.id}"


def _fared(report: DiffReport) -> str:
    parts = [f"{one.why} {one.buffers} ({signed(one.bytes)})" for one in report.fared if one.buffers]
    return f"of all buffers: {', '.join(parts)}"


def _table(section: Section) -> Iterator[str]:
    yield f"| {' | '.join(section.heading)} |"
    yield f"| {' | '.join('--:' if name in RIGHT else '---' for name in section.heading)} |"
    for row in section.rows:
        yield f"| {' | '.join(_escaped(cell.strip()) for cell in row)} |"


def _escaped(text: str) -> str:
    """Text in which Markdown finds nothing to interpret; what no escape keeps from being a link or a call is code."""
    words = printable(text).split(" ")
    return " ".join(code(word).replace("|", "\\|") if LINKED.search(word) else _plain(word) for word in words)


def _plain(word: str) -> str:
    return "".join(f"\\{one}" if one in "\\`*_{}[]<>()|~!&$" else one for one in word)


def code(text: str) -> str:
    """Text as code in Markdown."""
    return f"`{printable(text).replace('`', chr(39))}`"
