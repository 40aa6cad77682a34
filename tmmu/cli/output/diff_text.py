"""Text and Markdown of a ``DiffReport``: ASCII; names from the model are escaped."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console

from tmmu.cli.output import render
from tmmu.cli.output.diff_report import DiffReport, Figure, PeakCause, SideSummary, largest_cause
from tmmu.cli.printable import printable
from tmmu.compare.diff import Change
from tmmu.compare.diff_side import Moment

MAX_LISTED: Final = 10
"""Causes, and weights, that are listed."""
GITHUB_LINK: Final = re.compile(r"[@#]|://|www\.|\bGH-\d|\b[0-9a-f]{7,40}\b", re.IGNORECASE)
"""What GitHub turns into links and mentions even where Markdown escapes it."""
NUMBER_COLUMNS: Final = frozenset({"before", "after", "change", "buffers", "share", "bytes", "size", "buffer"})
"""Columns of numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Sentences and a table; either may be empty."""

    sentences: tuple[str, ...] = ()
    heading: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def print_report(out: Console, report: DiffReport) -> None:
    """Print the report as text."""
    print_sections(out, headline(report), sections(report))


def print_sections(out: Console, title: str, parts: Iterable[Section]) -> None:
    """Print a title and the sections."""
    out.print(printable(title), style="bold")
    for section in parts:
        justify = "".join(">" if name in NUMBER_COLUMNS else "<" for name in section.heading)
        table = render.align_columns(justify, section.heading, section.rows) if section.rows else []
        for lines in (section.sentences, table):
            render.print_lines(out, ["", *lines] if lines else [])


def markdown(report: DiffReport) -> Iterator[str]:
    """The report as a comment on a pull request."""
    about = f"{code(report.before.name)} to {code(report.after.name)}: {plan_setting(report.before, report.after)}"
    return markdown_sections(_verdict(report), about, sections(report))


def markdown_sections(verdict: str, about: str, parts: Iterable[Section]) -> Iterator[str]:
    """Lines of a heading, its subject and the sections."""
    yield f"### tmmu: {verdict}"
    yield ""
    yield about
    for section in parts:
        if section.sentences:
            yield from ("", *(f"{_escape(line)}  " for line in section.sentences))
        if section.rows:
            yield from ("", *_table(section))


def sections(report: DiffReport) -> Iterator[Section]:
    """Bytes by segment, causes at the peak, persistent buffers, all buffers by reason."""
    yield Section(heading=("", "before", "after", "change", "share"), rows=tuple(listed_figures(report.figures)))
    if report.lines or report.peak.bytes:
        yield Section(
            sentences=tuple(_reasons(report)),
            heading=("change", "buffers", "why", "made by", "module", "source", "needed until"),
            rows=(*map(_cause_cells, report.lines[:MAX_LISTED]), *_unlisted_causes(report.lines)),
        )
    if report.kept:
        more = f", the largest {MAX_LISTED} of {len(report.kept)}" if len(report.kept) > MAX_LISTED else ""
        yield Section(
            sentences=(f"kept all the time{more}:",),
            heading=("change", "why", "role", "name"),
            rows=tuple(map(_persistent_cells, report.kept[:MAX_LISTED])),
        )
    if any(count.buffers for count in report.fared):
        yield Section(sentences=(_counts_by_reason(report),))


def headline(report: DiffReport) -> str:
    """Names of the sides, how they were planned, and the verdict."""
    return (
        f"{report.before.name} -> {report.after.name}: {plan_setting(report.before, report.after)}: {_verdict(report)}"
    )


def _verdict(report: DiffReport) -> str:
    total = report.figures[0]
    if report.same:
        return "the same plan"
    if not any(figure.change for figure in report.figures):
        return "needs what it needed"
    return f"total {signed_text(total.change)}{_percent(total)}"


def plan_setting(*sides: SideSummary) -> str:
    """Mode, device and preset; of both sides where they differ."""
    texts = [f"{side.mode} on {side.target}, preset {side.preset}" for side in sides]
    return " -> ".join(dict.fromkeys(texts))


def listed_figures(figures: Sequence[Figure]) -> Iterator[tuple[str, ...]]:
    """Rows of the total and of each figure that is not 0 on both sides."""
    return (_figure_cells(figure) for figure in figures if figure.name == "total" or figure.before or figure.after)


def _figure_cells(figure: Figure) -> tuple[str, ...]:
    indent = "" if figure.name == "total" else "  " if not figure.segment else "    "
    return (
        indent + figure.name,
        render.size(figure.before),
        render.size(figure.after),
        signed_text(figure.change),
        _percent(figure).strip(" ()"),
    )


def signed_text(count: int) -> str:
    """Bytes more or less, or ``=``."""
    return "=" if not count else ("+" if count > 0 else "-") + render.size(abs(count))


def _percent(figure: Figure) -> str:
    """The change in per cent, to a tenth; empty if ``before`` is 0 or nothing changed."""
    if not figure.change_ppm:
        return ""
    tenths = (abs(figure.change_ppm) + 500) // 1000
    return f" ({'+' if figure.change > 0 else '-'}{tenths // 10}.{tenths % 10} %)"


def _reasons(report: DiffReport) -> Iterator[str]:
    """Why the stack's peak moved: the main cause, the positions compared, and bytes that no buffer accounts for."""
    peak, cause = report.peak, largest_cause(report)
    by = f", most of it by {_cause_text(cause[0])}: {signed_text(cause[1])}" if cause else ""
    yield f"stack {signed_text(peak.bytes)}{by}"
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
        yield f"packing loses {signed_text(peak.packing)}"


def _cause_text(cause: PeakCause) -> str:
    """Source line, operator, module and reason."""
    module = f" in {cause.modules[0]}" if cause.modules else ""
    more = f" and {len(cause.modules) - 1} more" if len(cause.modules) > 1 else ""
    source = (cause.source or "an op without source") + (" (as it was)" if cause.gone else "")
    return f"{source} ({cause.op}{module}{more}: {cause.why})"


def _moment(moment: Moment) -> str:
    place = ", ".join(text for text in (moment.op, moment.module, moment.source) if text)
    return f"at position {moment.position}{f' ({place})' if place else ''}: {render.size(moment.bytes)}"


def _cause_cells(cause: PeakCause) -> tuple[str, ...]:
    more = f" and {len(cause.modules) - 1} more" if len(cause.modules) > 1 else ""
    module = f"{cause.modules[0]}{more}" if cause.modules else ""
    source = cause.source + (" (as it was)" if cause.gone else "")
    return signed_text(cause.bytes), str(cause.buffers), cause.why, cause.op, module, source, cause.until


def _unlisted_causes(causes: Sequence[PeakCause]) -> list[tuple[str, ...]]:
    """One row that sums up the causes that are not listed."""
    unlisted = causes[MAX_LISTED:]
    if not unlisted:
        return []
    return [
        (
            signed_text(sum(line.bytes for line in unlisted)),
            str(sum(line.buffers for line in unlisted)),
            f"{len(unlisted)} more",
            "",
            "",
            "",
            "",
        )
    ]


def _persistent_cells(change: Change) -> tuple[str, ...]:
    origin = change.origin
    return signed_text(change.bytes), change.why, origin.role, origin.name or f"buffer {origin.id}"


def _counts_by_reason(report: DiffReport) -> str:
    parts = [f"{count.why} {count.buffers} ({signed_text(count.bytes)})" for count in report.fared if count.buffers]
    return f"of all buffers: {', '.join(parts)}"


def _table(section: Section) -> Iterator[str]:
    yield f"| {' | '.join(section.heading)} |"
    yield f"| {' | '.join('--:' if name in NUMBER_COLUMNS else '---' for name in section.heading)} |"
    for row in section.rows:
        yield f"| {' | '.join(_escape(cell.strip()) for cell in row)} |"


def _escape(text: str) -> str:
    """Text without Markdown; words that GitHub would link or mention in spite of an escape are code."""
    words = printable(text).split(" ")
    return " ".join(code(word).replace("|", "\\|") if GITHUB_LINK.search(word) else _plain(word) for word in words)


def _plain(word: str) -> str:
    return "".join(f"\\{character}" if character in "\\`*_{}[]<>()|~!&$" else character for character in word)


def code(text: str) -> str:
    """Text as code in Markdown."""
    return f"`{printable(text).replace('`', chr(39))}`"
