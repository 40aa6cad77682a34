"""The report of ``tmmu diff`` for a new model, which has nothing to compare with: its bytes, and its peak."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tmmu.cli.output import render
from tmmu.compare.match import PlannedGraph
from tmmu.summary.diff_report import EagerTotals, Figure, SideSummary, eager_totals, figures, side_summary
from tmmu.summary.diff_text import Section, listed_figures, plan_setting
from tmmu.summary.plan_summary import LISTED_BUFFERS, Peak, stack_peaks


@dataclass(frozen=True, slots=True, kw_only=True)
class NewModelReport:
    """What a new model takes; ``absent``: name of the side that does not exist.

    ``fullest``: the stack's peak with its largest buffers, ``None`` if the stack is empty.
    """

    absent: str
    after: SideSummary
    figures: tuple[Figure, ...]
    fullest: Peak | None
    eager: EagerTotals | None


def new_model_report(after: PlannedGraph, *, absent: str, name: str) -> NewModelReport:
    """The report of a planned graph without another side."""
    peaks = stack_peaks(after.plan, after.graph, LISTED_BUFFERS)
    return NewModelReport(
        absent=absent,
        after=side_summary(name, after),
        figures=tuple(figures(None, after)),
        fullest=peaks[0] if peaks else None,
        eager=eager_totals(after),
    )


def new_model_record(report: NewModelReport) -> dict[str, Any]:
    """As JSON, with the keys of a ``DiffReport``: no side before, no causes."""
    record = asdict(report)
    return {
        "before": None,
        "after": record["after"],
        "same": False,
        "figures": record["figures"],
        "peak": None,
        "lines": [],
        "kept": [],
        "fared": [],
        "eager": {"before": None, "after": record["eager"]},
        "fullest": record["fullest"],
    }


def new_model_headline(report: NewModelReport) -> str:
    """Name, how it was planned, and the verdict."""
    return f"{report.after.name}: {plan_setting(report.after)}: {new_model_verdict(report)}"


def new_model_verdict(report: NewModelReport) -> str:
    """That it is new, and its total."""
    return f"new, total {render.size(report.figures[0].after)}"


def new_model_sections(report: NewModelReport) -> Iterator[Section]:
    """Bytes by segment, and the buffers that are live at the stack's peak."""
    yield Section(
        sentences=(f"nothing to compare with: {report.absent} is not there",),
        heading=("", "bytes"),
        rows=(*_eager_rows(report.eager), *((name, after) for name, _, after, *_ in listed_figures(report.figures))),
    )
    if report.fullest:
        heading, *rows = render.live_rows(report.fullest.buffers)
        yield Section(sentences=(render.peak_line(report.fullest),), heading=heading, rows=tuple(rows))


def _eager_rows(eager: EagerTotals | None) -> tuple[tuple[str, str], ...]:
    """Total and stack of the model run as it is."""
    if eager is None:
        return ()
    return ("run as it is", render.size(eager.total_bytes)), ("  its stack", render.size(eager.stack_bytes))
