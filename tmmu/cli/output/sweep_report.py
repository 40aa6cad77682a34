"""The layouts of a sweep as a table, and its record for JSON."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from tmmu.codec.printable import align_columns
from tmmu.errors import error_record
from tmmu.planner.arenas import readable_size
from tmmu.rank_sweep import Layout, LayoutRow, RefusedLayout
from tmmu.summary.plan_summary import DEVICE_GB

SIZES: Final[Mapping[str, str]] = {
    "tp": "tp", "fsdp": "fsdp", "pp": "pp", "ep": "ep", "batch": "batch", "microbatches": "micro-batches",
}  # fmt: skip
"""Fields of a layout, and how a table calls them."""
HEADING: Final = ("layers again", "as it is", "in the plan", "sent", "FLOPs", "fits")
SCALES: Final = (("P", 10**15), ("T", 10**12), ("G", 10**9), ("M", 10**6))
GB: Final = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """What is shown: ``budget`` is a rank's device memory in bytes, of which ``reserve`` stays free."""

    name: str
    mode: str
    device: str
    world: int
    budget: int | None
    reserve: int
    rows: Sequence[LayoutRow | RefusedLayout]


def sweep_lines(report: SweepReport) -> Iterator[str]:
    """The report as text: layouts that are planned, then those that are refused, with the reason."""
    kept = f", with {readable_size(report.reserve)} in reserve"
    room = f" of {readable_size(report.budget)}" if report.budget is not None else ""
    yield f"{report.name}: {report.mode} on {report.world} {report.device} ranks{room}{kept}"
    planned = [row for row in report.rows if isinstance(row, LayoutRow)]
    if planned:
        yield ""
        names = _sizes_shown([row.layout for row in planned])
        heading = (*(SIZES[name] for name in names), *HEADING)
        rows = [(*_size_cells(row.layout, names), *_cells(row, report)) for row in planned]
        yield from align_columns(">" * len(heading), heading, rows)
    refused = list(dict.fromkeys(_refusal_line(row) for row in report.rows if isinstance(row, RefusedLayout)))
    yield from ["", *refused] if refused else []
    yield ""
    yield "of each layout the rank that needs most, in one step; sent: to other ranks, if they stand in rings"
    sources = [row.follows_from for row in planned if row.follows_from]
    for source in dict.fromkeys(sources):
        batches = ", ".join(map(str, source[:-1]))
        yield f"{sources.count(source)} of the layouts follow from traces at batch {batches} and {source[-1]}"


def _sizes_shown(layouts: Sequence[Layout]) -> list[str]:
    """The sizes that a table of these layouts has: those of stages and experts where some layout has them."""
    has_stages, has_experts = any(layout.pp > 1 for layout in layouts), any(layout.ep > 1 for layout in layouts)
    left_out = {"pp": not has_stages, "microbatches": not has_stages, "ep": not has_experts}
    return [name for name in SIZES if not left_out.get(name)]


def _size_cells(layout: Layout, names: Sequence[str]) -> list[str]:
    sizes = [getattr(layout, name) for name in names]
    return ["-" if size is None else str(size) for size in sizes]


def _refusal_line(row: RefusedLayout) -> str:
    """One for all batches, where they are refused for one reason."""
    layout = row.layout
    more = "".join(f", {name} {size}" for name, size in (("pp", layout.pp), ("ep", layout.ep)) if size > 1)
    return f"tp {layout.tp}, fsdp {layout.fsdp}{more}: {' '.join(str(row.error).split())}"


def sweep_record(report: SweepReport) -> dict[str, Any]:
    """The report for JSON."""
    rows = [_record(row, report) for row in report.rows]
    names = ("name", "mode", "device", "world", "budget", "reserve")
    return {name: getattr(report, name) for name in names} | {"layouts": rows}


def _record(row: LayoutRow | RefusedLayout, report: SweepReport) -> dict[str, Any]:
    if isinstance(row, RefusedLayout):
        return asdict(row.layout) | {"refused": error_record(row.error)}
    figures = asdict(row)
    layout: dict[str, Any] = figures.pop("layout")
    return layout | figures | {"fits": fits(row, report), "refused": None}


def fits(row: LayoutRow, report: SweepReport) -> str | None:
    """How a layout fits: ``as it is``, ``in the plan``, ``fitted``, or ``None``.

    Without a budget, in which of ``DEVICE_GB`` it does.
    """
    if report.budget is None:
        needed = row.needed + report.reserve
        return next((f"{size} GB" for size in DEVICE_GB if needed <= size * GB), None)
    for how, size in (("as it is", row.needed), ("in the plan", row.planned)):
        if size + report.reserve <= report.budget:
            return how
    return None if row.fitted is None else "fitted"


def _fits_text(row: LayoutRow, report: SweepReport) -> str:
    how = fits(row, report)
    if how != "fitted" or row.fitted is None:
        return how or "no"
    percent = 100 * row.fitted.extra_flops / row.flops if row.flops else 0.0
    return f"in {readable_size(row.fitted.planned)}, {row.fitted.reruns} ops again, {percent:.1f} % more FLOPs"


def _cells(row: LayoutRow, report: SweepReport) -> tuple[str, ...]:
    layout: Layout = row.layout
    eager = "not known" if row.eager is None else readable_size(row.eager)
    return (
        "yes" if layout.checkpoint else "no",
        eager,
        readable_size(row.planned),
        readable_size(row.sent),
        _flops_text(row.flops),
        _fits_text(row, report),
    )


def _flops_text(flops: int) -> str:
    """Three digits and a unit."""
    for unit, scale in SCALES:
        if flops >= scale:
            return f"{flops / scale:.3g} {unit}"
    return str(flops)
