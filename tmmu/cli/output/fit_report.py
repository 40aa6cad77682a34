"""The report of ``tmmu fit``: what each lever gives, what it costs, what runs again, and the floor."""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tmmu.cli.output.figures_text import fit_text
from tmmu.cli.output.render import size
from tmmu.codec.percents import SMALL, about_percent
from tmmu.codec.printable import align_columns
from tmmu.device_fit import DeviceFitting
from tmmu.driver import Compiled
from tmmu.eager.peak import eager_figures
from tmmu.ir.fit import AGAIN
from tmmu.ir.graph import FUSED_NAMESPACE, Graph
from tmmu.ir.ids import OpId
from tmmu.ir.rewrite import TO_HOST, Rewrite
from tmmu.planner.fit.curve import CurvePoint
from tmmu.planner.fit.fit_graph import Fitting, Stage, op_text
from tmmu.planner.fit.fit_step import PPM, FittedStep
from tmmu.planner.fit.forms import LEVER_NAMES, LEVERS, OFFLOAD, PARTS, RECOMPUTE
from tmmu.planner.fit.offload.offload_step import LINK
from tmmu.summary.plan_summary import device_fits, memory_of, stack_peaks

HEADING: Final = ("lever", "step", "extra time", "extra FLOPs", "bits")
LISTED: Final = 3
MILESTONES: Final = (1_000, 10_000, 30_000, 50_000, 100_000, 200_000)
"""Extra time in ppm, at which the curve is printed."""
WHAT: Final = dict(LEVERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitReport:
    """What was found; ``beside``: bytes of weights, state and inputs; ``options``: of the model, as they were written.

    ``step``: what was found, with ops fused where that was asked for.
    ``files``: as the caller names their folder; ``replaced``: a plan beside them whose graph is another one now;
    ``untraced``: why no model is traced to the graph that was fitted, so that nothing runs the plan, if that is so.
    """

    compiled: Compiled
    found: DeviceFitting
    step: FittedStep
    beside: int
    reserve: int
    budget: int | None
    model: str
    options: tuple[str, ...]
    files: tuple[Path, ...]
    replaced: Path | None
    untraced: str
    page: Path | None
    shows_curve: bool

    @property
    def fitting(self) -> Fitting:
        """The step, and its levers."""
        return self.found.fitting

    @property
    def total(self) -> int:
        """Bytes of a run inside the fitted plan, without the reserve."""
        return self.beside + self.step.stack_bytes

    @property
    def kernels(self) -> int:
        """Fused ops of the step."""
        return sum(target.startswith(f"{FUSED_NAMESPACE}.") for target in self.step.graph.ops.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainRow:
    """What runs again: bytes that are written, by modules of one form and operator."""

    module: str
    op: str
    source: str
    ops: int
    bytes: int


def again_rows(graph: Graph, rewrite: Rewrite) -> list[AgainRow]:
    """Most bytes first."""
    rows: dict[tuple[str, str], AgainRow] = {}
    for op, kind in enumerate(rewrite.kind):
        if kind not in AGAIN:
            continue
        module = re.sub(r"\d+", "*", graph.notes.ops.module[op])
        key = module, graph.ops.target[op]
        buffers = {graph.values.buffer[value] for value in graph.ops.writes[op]}
        before = rows.get(key)
        rows[key] = AgainRow(
            module=module,
            op=graph.ops.target[op],
            source=graph.notes.ops.source[op],
            ops=1 + (before.ops if before else 0),
            bytes=sum(graph.buffers.bytes[b] for b in buffers) + (before.bytes if before else 0),
        )
    return sorted(rows.values(), key=lambda row: (-row.bytes, row.module, row.op))


def lines(report: FitReport) -> Iterator[str]:
    """The report as text."""
    fitting, graph = report.fitting, report.compiled.graph
    yield (
        f"{graph.notes.name}: {report.compiled.plan.mode} on {graph.target}: {size(report.beside)} of weights, state "
        f"and inputs, and a step of {size(fitting.base_stack)}"
    )
    if report.budget is not None:
        left = report.budget - report.reserve - report.beside
        yield f"budget {size(report.budget)}, less {size(report.reserve)} kept free: {size(left)} for the step"
    yield ""
    yield from align_columns("<>>><", HEADING, [_stage_row(stage, report) for stage in fitting.stages])
    yield ""
    for op in fitting.gradient_readers:
        yield f"updates wait for all gradients: {op_text(graph, op)} reads them"
    if report.found.left_out:
        ops = ", ".join(dict.fromkeys(op_text(graph, op) for op in report.found.left_out))
        yield f"nothing runs in parts: those of {ops} have other bits than the whole on this {graph.target}"
    if report.shows_curve:
        yield from _curve_lines(report)
        yield ""
    if report.files:
        yield from _result_lines(report)
    if report.page is not None:
        yield f"wrote {report.page.name}: the plan as a page, with the curve"
    yield _floor_line(report)


def _stage_row(stage: Stage, report: FitReport) -> tuple[str, ...]:
    if not stage.lever:
        return ("as it is", size(stage.stack_bytes), "", "", "")
    what = WHAT[stage.lever]
    reruns = report.fitting.fitted.reruns
    counts = {RECOMPUTE: f": {reruns} ops" if reruns else "", OFFLOAD: f": {size(report.fitting.fitted.host_bytes)}"}
    count = counts.get(stage.lever, "")
    time, flops = _time_ppm(stage.time, report), _flops_ppm(stage.flops, report)
    return (
        f"{stage.lever}: {what}{count}",
        size(stage.stack_bytes),
        f"~{_with_sign(time)}",
        _exact_with_sign(stage.flops, flops),
        stage.bits,
    )


def _curve_lines(report: FitReport) -> Iterator[str]:
    curve = report.fitting.curve
    if curve is None:
        return
    rows = []
    for limit in MILESTONES:
        within = [point for point in curve.points if point.time * PPM <= limit * curve.time]
        if within:
            rows.append(_curve_row(f"+{limit / 10_000:g} %", within[-1], report))
    rows.append(_curve_row("least", curve.points[-1], report))
    yield from align_columns("<>>>", ("at most", "live", "extra time", "extra FLOPs"), rows)
    yield "live: the most bytes of the step at once; its plan takes them, or a little more where they do not pack"


def _curve_row(name: str, point: CurvePoint, report: FitReport) -> tuple[str, ...]:
    time = _time_ppm(point.time, report)
    flops = _exact_with_sign(point.flops, _flops_ppm(point.flops, report))
    return (name, size(point.peak), f"~{_with_sign(time)}", flops)


def _result_lines(report: FitReport) -> Iterator[str]:
    fitting, graph = report.fitting, report.compiled.graph
    fitted = fitting.fitted
    of = "" if report.budget is None else f" of {size(report.budget)}"
    step = f"the step in {size(report.step.stack_bytes)}"
    yield f"fits: {size(report.total + report.reserve)}{of}, {step}, with {size(report.reserve)} kept free"
    yield from _first_step_lines(report)
    eager = eager_figures(graph, report.compiled.plan.mode)
    if eager is not None:
        yield f"as it is, outside tmmu, the model takes {size(eager.total_bytes)}"
    yield f"of other devices it {fit_text(device_fits(report.total + report.reserve))}"
    rows = again_rows(fitted.graph, fitted.rewrite)[:LISTED]
    if rows:
        yield f"computed again, most: {'; '.join(map(_again_text, rows))}"
    if fitted.host_bytes:
        yield _host_line(fitted, graph)
    if report.kernels:
        yield (
            f"fused: {report.kernels} kernels, {len(report.step.graph.ops)} ops in place of {len(fitted.graph.ops)}; "
            f"unfused, the step takes {size(fitted.stack_bytes)}"
        )
    peaks = stack_peaks(report.step.plan, report.step.graph, LISTED)
    if peaks:
        kept = (f"{size(b.bytes)} of {b.op}" + (f" ({b.source})" if b.source else "") for b in peaks[0].buffers)
        yield f"fullest at {peaks[0].op}, most: {'; '.join(kept)}"
    near = fitted.plan.fit.near if fitted.plan.fit else ()
    equal = f"near what the step computes ({', '.join(near)})" if near else "what the step computes"
    whose = "before its ops are fused it" if report.kernels else "it"
    yield f"judged: {whose} computes {equal}, and {'the fused step' if report.kernels else 'it'} is sound in memory"
    if not report.found.is_tried:
        levers = ",".join(name for name in LEVER_NAMES if name != PARTS)
        yield (
            f"parts are tried on the {graph.target} that runs them: where they have other bits there, the run is "
            f"refused; then fit it with --only {levers}"
        )
    yield f"wrote {', '.join(map(str, reversed(report.files)))}"
    if report.replaced is not None:
        yield f"{report.replaced} was made of another graph than lies beside it now: plan it again"
    yield _run_line(report)


def _run_line(report: FitReport) -> str:
    """The command that runs the plan, or why there is none."""
    if report.untraced:
        return f"nothing runs it: {report.untraced}"
    graph = report.compiled.graph
    device = () if graph.target == "cpu" else (f"--device {graph.target}",)
    plan = f"--plan {shlex.quote(str(report.files[-1]))}"
    command = " ".join(("tmmu run", report.model, *device, *report.options, plan, "--check"))
    return f"run it{', with the options of MODEL' * (report.model == 'MODEL')}: {command}"


def _first_step_lines(report: FitReport) -> Iterator[str]:
    """Of a step of the user's, the run that makes its state, which no plan is for."""
    first = report.compiled.first_step
    if first is None or first.total_bytes <= report.total:
        return
    room = "" if report.budget is None else f" of {size(report.budget - report.reserve)}"
    does_not = report.budget is not None and first.total_bytes > report.budget - report.reserve
    yield (
        f"the first step makes the optimizer's state and runs as it is: it takes {size(first.total_bytes)}{room}"
        + (", and does not fit" if does_not else "")
    )


def _host_line(fitted: FittedStep, graph: Graph) -> str:
    """What is in host memory for a while, and what that gains."""
    values = fitted.rewrite.kind.count(TO_HOST)
    host = "page-locked host memory" if graph.target == "cuda" else "host memory"
    gain = "" if graph.target == "cuda" else "; a CPU has no other memory, so that this frees none of it"
    return (
        f"in {host} for a while: {size(fitted.host_bytes)}, {values} values, at {LINK.link / 1e9:g} GB/s each way{gain}"
    )


def _again_text(row: AgainRow) -> str:
    where = " of ".join(part for part in (row.op, row.module) if part)
    return f"{size(row.bytes)} of {where}" + (f" ({row.source})" if row.source else "")


def _floor_line(report: FitReport) -> str:
    floor, graph = report.fitting.floor, report.fitting.floor_graph
    if not len(graph.ops):
        return "no order and no recomputation goes below 0 bytes"
    return f"no order and no recomputation goes below {size(floor.bytes)}: {op_text(graph, floor.op)}"


def _time_ppm(time: int, report: FitReport) -> int:
    return time * PPM // max(1, report.fitting.base_time)


def _flops_ppm(flops: int, report: FitReport) -> int:
    return flops * PPM // max(1, report.fitting.base_flops)


def _with_sign(ppm: int) -> str:
    return "0" if abs(ppm) < SMALL else f"{ppm / 10_000:+.1f} %"


def _exact_with_sign(count: int, ppm: int) -> str:
    """A share that is counted: ``0`` where nothing is; at least a part in a million where something is."""
    return f"{'-' if count < 0 else '+'}{about_percent(max(1, abs(ppm)))} %" if count else "0"


def record(report: FitReport) -> dict[str, Any]:
    """The report as one JSON object; bytes, and shares in parts per million."""
    fitting, compiled = report.fitting, report.compiled
    fitted = fitting.fitted
    eager = eager_figures(compiled.graph, compiled.plan.mode)
    curve = () if fitting.curve is None else fitting.curve.points
    plan_fit = fitted.plan.fit
    return {
        "model": compiled.graph.notes.name,
        "mode": compiled.plan.mode,
        "device": compiled.graph.target,
        "budget_bytes": report.budget,
        "reserve_bytes": report.reserve,
        "base_stack_bytes": fitting.base_stack,
        "stack_bytes": report.step.stack_bytes,
        "total_bytes": report.total,
        "first_step_bytes": None if report.compiled.first_step is None else report.compiled.first_step.total_bytes,
        "eager": None if eager is None else asdict(eager),
        "extra_time_ppm": _time_ppm(fitted.time, report),
        "extra_flops": fitted.flops,
        "extra_flops_ppm": _flops_ppm(fitted.flops, report),
        "reruns": fitted.reruns,
        "host_bytes": fitted.host_bytes,
        "order": fitted.order,
        "parts_left_out": _op_records(compiled.graph, report.found.left_out),
        "parts_tried": report.found.is_tried,
        "replaced_graph_of": None if report.replaced is None else str(report.replaced),
        "near": list(plan_fit.near) if plan_fit else [],
        "floor_bytes": fitting.floor.bytes,
        "updates_wait_for": _op_records(compiled.graph, fitting.gradient_readers),
        "levers": [
            {
                "lever": stage.lever,
                "stack_bytes": stage.stack_bytes,
                "extra_time_ppm": _time_ppm(stage.time, report),
                "extra_flops_ppm": _flops_ppm(stage.flops, report),
                "bits": stage.bits,
            }
            for stage in fitting.stages
        ],
        "again": [asdict(row) for row in again_rows(fitted.graph, fitted.rewrite)],
        "curve": [
            {
                "live_bytes": point.peak,
                "extra_time_ppm": _time_ppm(point.time, report),
                "extra_flops_ppm": _flops_ppm(point.flops, report),
            }
            for point in (curve if report.shows_curve else ())
        ],
        "digest": report.step.plan.digest.hex(),
        "files": [str(path) for path in report.files],
        "report": None if report.page is None else str(report.page),
        "memory": asdict(memory_of(report.step.plan, report.step.graph)),
        "untraced": report.untraced or None,
        "fits": [fit.gb for fit in device_fits(report.total + report.reserve) if fit.fits],
        "kernels": report.kernels,
    }


def _op_records(graph: Graph, ops: Sequence[OpId]) -> list[dict[str, str]]:
    return [{"op": graph.ops.target[op], "source": graph.notes.ops.source[op]} for op in ops]
