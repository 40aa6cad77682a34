"""A model that is new: there is nothing to compare it with, so what it takes is said, and who holds that."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tmmu.cli.output import render
from tmmu.cli.output.diff_report import Figure, SideLine, figures, side_line
from tmmu.cli.output.diff_text import Section, listed_figures, plan_setting
from tmmu.cli.output.summary import LARGEST, Peak, stack_peaks
from tmmu.compare.match import PlannedGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """What a new model takes: each figure grew from nothing. ``absent`` is the side that is not there.

    ``fullest`` is where the stack holds most, with the largest buffers; nothing where it holds none.
    """

    absent: str
    after: SideLine
    figures: tuple[Figure, ...]
    fullest: Peak | None


def arrive(after: PlannedGraph, *, absent: str, name: str) -> Arrival:
    """The report of a planned graph that has no other beside it."""
    peaks = stack_peaks(after.plan, after.graph, LARGEST)
    return Arrival(
        absent=absent,
        after=side_line(name, after),
        figures=tuple(figures(None, after)),
        fullest=peaks[0] if peaks else None,
    )


def arrival_record(arrival: Arrival) -> dict[str, Any]:
    """As JSON, with the keys that a comparison has: nothing was before, and no cause is told."""
    record = asdict(arrival)
    return {
        "before": None,
        "after": record["after"],
        "same": False,
        "figures": record["figures"],
        "peak": None,
        "lines": [],
        "kept": [],
        "fared": [],
        "fullest": record["fullest"],
    }


def arrival_headline(arrival: Arrival) -> str:
    """What is new, and how it was planned."""
    return f"{arrival.after.name}: {plan_setting(arrival.after)}: {arrival_verdict(arrival)}"


def arrival_verdict(arrival: Arrival) -> str:
    """That it is new, and what it needs."""
    return f"new, total {render.size(arrival.figures[0].after)}"


def arrival_sections(arrival: Arrival) -> Iterator[Section]:
    """Bytes by segment, then who holds the stack where it is fullest."""
    yield Section(
        sentences=(f"nothing to compare with: {arrival.absent} is not there",),
        heading=("", "bytes"),
        rows=tuple((name, after) for name, _, after, *_ in listed_figures(arrival.figures)),
    )
    if arrival.fullest:
        heading, *rows = render.live_rows(arrival.fullest.buffers)
        yield Section(sentences=(render.peak_line(arrival.fullest),), heading=heading, rows=tuple(rows))
