"""A ``DiffReport`` in words: sections of sentences and tables, in ASCII."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tmmu.codec.printable import align_columns
from tmmu.compare.diff import Change
from tmmu.compare.diff_side import Moment
from tmmu.planner.arenas import readable_size
from tmmu.summary.diff_report import DiffReport, EagerTotalsByTime, Figure, PeakCause, SideSummary, largest_cause

MAX_LISTED: Final = 10
"""Causes, and weights, that are listed."""
EAGER_LABELS: Final = {
    "eager total": "run as it is",
    "eager stack": "its stack",
    "eager reserved": "reserved",
}
NUMBER_COLUMNS: Final = frozenset({"before", "after", "change", "buffers", "share", "bytes", "size", "buffer"})
"""Columns of numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Sentences and a table; either may be empty."""

    sentences: tuple[str, ...] = ()
    heading: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def section_lines(parts: Iterable[Section]) -> Iterator[str]:
    """Lines of the sections, a blank one before each sentence block and each table."""
    for section in parts:
        justify = "".join(">" if name in NUMBER_COLUMNS else "<" for name in section.heading)
        table = align_columns(justify, section.heading, section.rows) if section.rows else []
        for lines in (section.sentences, table):
            yield from ["", *lines] if lines else []


def sections(report: DiffReport) -> Iterator[Section]:
    """Bytes by segment, causes at the peak, persistent buffers, all buffers by reason."""
    rows = (*eager_rows(report.eager.figures()), *listed_figures(report.figures))
    yield Section(heading=("", "before", "after", "change", "share"), rows=rows)
    if notes := tuple(eager_notes(report.eager)):
        yield Section(sentences=notes)
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
        f"{report.before.name} -> {report.after.name}: {plan_setting(report.before, report.after)}: {verdict(report)}"
    )


def verdict(report: DiffReport) -> str:
    """How total and eager's total changed."""
    as_it_is = next((f"; run as it is {_change_text(row)}" for row in report.eager.figures()[:1] if row.change), "")
    if report.same:
        return f"the same plan{as_it_is}"
    if not any(figure.change for figure in report.figures):
        return f"needs what it needed{as_it_is}"
    return f"total {_change_text(report.figures[0])}{as_it_is}"


def _change_text(figure: Figure) -> str:
    return f"{signed_text(figure.change)}{_percent(figure)}"


def plan_setting(*sides: SideSummary) -> str:
    """Mode, device and preset; of both sides where they differ."""
    texts = [f"{side.mode} on {side.target}, preset {side.preset}" for side in sides]
    return " -> ".join(dict.fromkeys(texts))


def eager_rows(figures: Sequence[Figure]) -> Iterator[tuple[str, ...]]:
    """Rows of a run as it is."""
    for figure in figures:
        label = EAGER_LABELS[figure.name]
        yield f"  {label}" if figure.segment else label, *_figure_cells(figure)[1:]


def eager_notes(eager: EagerTotalsByTime) -> Iterator[str]:
    """What makes eager's figures unknown, or no comparison."""
    known = [name for name, side in (("before", eager.before), ("now", eager.after)) if side]
    if len(known) == 1:
        side = eager.before or eager.after
        assert side is not None
        total = readable_size(side.total_bytes)
        yield f"run as it is: {total} {known[0]}; the other graph does not say"
    if eager.before and eager.after and not eager.is_comparable:
        versions = f"CPython {eager.before.python} before and {eager.after.python} now"
        yield f"run as it is: frames of {versions}, which may hold locals for other times; no limit is held against it"


def listed_figures(figures: Sequence[Figure]) -> Iterator[tuple[str, ...]]:
    """Rows of the total and of each figure that is not 0 on both sides."""
    return (_figure_cells(figure) for figure in figures if figure.name == "total" or figure.before or figure.after)


def _figure_cells(figure: Figure) -> tuple[str, ...]:
    indent = "" if figure.name == "total" else "  " if not figure.segment else "    "
    return (
        indent + figure.name,
        readable_size(figure.before),
        readable_size(figure.after),
        signed_text(figure.change),
        _percent(figure).strip(" ()"),
    )


def signed_text(count: int) -> str:
    """Bytes more or less, or ``=``."""
    return "=" if not count else ("+" if count > 0 else "-") + readable_size(abs(count))


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
        yield f"{peak.moved} buffers of {readable_size(peak.moved_bytes)} moved into the peak as they were"
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
    return f"at position {moment.position}{f' ({place})' if place else ''}: {readable_size(moment.bytes)}"


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
