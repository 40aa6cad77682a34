"""Text of the two figures: the model run as it is, and inside its plan; and who makes the difference."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tmmu.eager.peak import EagerFigures, Holding
from tmmu.planner.arenas import readable_size
from tmmu.summary.plan_summary import Fit, Summary

if TYPE_CHECKING:
    from tmmu.driver import FirstStep

UNSAID: Final = "the graph does not say it (version 1, of a training step, or no graph)"
LISTED_HOLDERS: Final = 3
"""Holders that are named."""


def figures_lines(summary: Summary) -> list[str]:
    """What the reader is about to do first: run the model; then what its plan needs."""
    planned = summary.planned
    inside = (
        f"inside the plan: {readable_size(planned.total_bytes)}, of which stack {readable_size(planned.stack_bytes)}"
    )
    if summary.eager is None:
        return [f"run as it is: not known, {UNSAID}", inside]
    return [
        eager_line(summary.eager, summary.eager_fits, summary.reserve),
        *host_lines(summary.eager),
        *parts_lines(summary.eager),
        inside,
        *holding_lines(summary.eager),
    ]


def eager_line(eager: EagerFigures, fits: Sequence[Fit], reserve: int) -> str:
    """Bytes of a run as it is, and the devices that have them and the reserve."""
    text = f"run as it is:    {readable_size(eager.total_bytes)}, of which stack {readable_size(eager.stack_bytes)}"
    if eager.reserved_bytes is not None:
        text += f"; torch's allocator reserves {readable_size(eager.reserved_bytes)} (by a model of it)"
    return f"{text}; with {readable_size(reserve)} in reserve it {fit_text(fits)}"


def host_lines(eager: EagerFigures) -> list[str]:
    """What the run takes of the host's memory, which is none of the device's."""
    if not eager.host_bytes:
        return []
    return [f"  on the host, by .cpu() and its kind: {readable_size(eager.host_bytes)} at most, not counted here"]


def parts_lines(eager: EagerFigures) -> list[str]:
    """Which layers the figure is not of as they run."""
    if not eager.in_parts:
        return []
    names = ", ".join(eager.in_parts)
    remedy = "torch.backends.mha.set_fastpath_enabled(False) makes a run take them too"
    return [f"  {names}: one kernel in a run, whose parts these bytes are of; {remedy}"]


def fit_text(fits: Sequence[Fit]) -> str:
    """The sizes that fit, those that do not, and by how much the largest of these is too small."""
    fitting = " ".join(str(fit.gb) for fit in fits if fit.fits)
    short = [fit for fit in fits if not fit.fits]
    verdict = f"fits {fitting} GB" if fitting else "fits no size listed"
    if not short:
        return verdict
    names = " ".join(str(fit.gb) for fit in short)
    return f"{verdict}, not {names} GB ({short[-1].gb} GB is {readable_size(-short[-1].left)} short)"


def holding_lines(eager: EagerFigures) -> list[str]:
    """Who holds most at eager's peak that a planned run has dropped by then."""
    rows = eager.holdings[:LISTED_HOLDERS]
    more = len(eager.holdings) - len(rows)
    lines = [f"  {_holding_text(row)}" for row in rows]
    if more > 0:
        rest = sum(row.bytes for row in eager.holdings[LISTED_HOLDERS:])
        lines.append(f"  {readable_size(rest)} by {more} more")
    if eager.collected_bytes is not None:
        lines.append(f"  had cycles been collected at once, the stack were {readable_size(eager.collected_bytes)}")
    return ["held at eager's peak beyond the last use:", *lines] if lines else []


def _holding_text(row: Holding) -> str:
    count = f"{row.storages} tensor{'s' if row.storages > 1 else ''}"
    place = f" (most of it made at {row.source})" if row.source and row.source not in row.holder else ""
    return f"{readable_size(row.bytes)} in {count} by {row.holder}{place}"


def first_step_lines(first: "FirstStep | None") -> list[str]:
    """Of a step of the user's: what the run takes that makes its state, and what each later one leaves more."""
    if first is None:
        return []
    sizes = f"{readable_size(first.total_bytes)} as it is, of which stack {readable_size(first.stack_bytes)}"
    lines = [f"the first step, which makes what later ones find, takes {sizes}"]
    if first.growth:
        lines.append(f"each step leaves {readable_size(first.growth)} more than it found")
    if first.skips_update:
        lines.append(
            "no update is in it: it called no optimizer's step, and left gradients to one; where a counter decides, "
            "plan one function that takes all batches of an update"
        )
    return lines
