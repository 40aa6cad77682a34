"""``tmmu plan``: from options to a written, judged plan and its summary."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from tmmu.cli import options
from tmmu.cli.error_boundary import conclude, print_json
from tmmu.cli.option_groups import OptionGroup, expand_groups
from tmmu.cli.options import CaptureOptions, FusionOptions, PlanningOptions, RankOptions, TokenOptions
from tmmu.cli.output import render
from tmmu.cli.output.figures_text import first_step_lines
from tmmu.cli.output.ranks_report import rank_lines, rank_record
from tmmu.cli.output.sweep_report import SweepReport, sweep_lines, sweep_record
from tmmu.cli.parsing import (
    graph_output,
    parse_file,
    parse_model,
    parse_option,
    parse_reserve,
    plan_path,
    refuse,
    require_count,
    require_writable,
    same_file,
)
from tmmu.cli.planning import ModelRequest, compile_rank_request, compile_request, model_request
from tmmu.cli.sweep import SweepRequest, run_sweep, sweep_request
from tmmu.codec.files import write_together
from tmmu.codec.load import PLAN_SUFFIX
from tmmu.driver import Compiled
from tmmu.errors import InvalidConfig
from tmmu.ir.graph import encode_graph
from tmmu.ir.plan import encode_plan
from tmmu.passes.operators.kernel_temporaries import KernelTemporaries, kernel_temporaries
from tmmu.planner.arenas import parse_size
from tmmu.rank_plans import RankPlans, ranks_text
from tmmu.rank_sweep import RefusedLayout
from tmmu.report.contents import ReportContents, report_contents
from tmmu.report.page import page_html
from tmmu.summary.plan_summary import summarize

app = typer.Typer(add_completion=False)
DETERMINISTIC: Final = "use_deterministic_algorithms"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCommandOptions(OptionGroup):
    """Options of ``tmmu plan`` alone."""

    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write the plan here. Default: NAME.plan.cbor.")
    ] = None
    ir: options.GraphOutput = None
    reserve: options.Reserve = None
    report: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Write the plan as an HTML file to look at too, as tmmu report does. Default: none."
        ),
    ] = None
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AXIS[=V,...]",
            help="Plan an hf: model over --world ranks in every layout of these axes, tp, pp, ep, batch, microbatches "
            "and checkpoint, and print a table; may be repeated. No plan is written. Default: one layout.",
        ),
    ] = None
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Say which layouts of --sweep fit in a device of SIZE, --reserve included. Default: the smallest "
            "common device that each fits.",
        ),
    ] = None
    fit: Annotated[
        bool,
        typer.Option(
            "--fit",
            help="Make the steps of layouts of --sweep that do not fit in --budget fit, as tmmu fit does, and say what "
            "that costs. Default: no.",
        ),
    ] = False
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            envvar="TMMU_JOBS",
            help="Plan the layouts of --sweep with N processes at once. Default: one per core, 8 at most.",
        ),
    ] = None
    as_json: options.Json = False


@app.command()
@expand_groups
def plan(  # noqa: PLR0913 - the groups of options of one command
    *,
    model: options.Model,
    capture: CaptureOptions,
    ranks: RankOptions,
    planning: PlanningOptions,
    fusion: FusionOptions,
    token: TokenOptions,
    files: PlanCommandOptions,
) -> options.Run:
    """Trace MODEL without weights or GPU, and write a plan in which every byte is decided and judged."""
    if files.sweep or files.budget is not None or files.fit or "--jobs" in dict(files.given_options()):
        refuse({"--fuse": fusion.fuse}, "not with --sweep", fix="leave it out, or plan one layout")
        return lambda: run_sweep_job(sweep_job(model, capture, planning, token, files, ranks=ranks))
    return lambda: run_plan(plan_job(model, capture, planning, token, files, ranks=ranks, fusion=fusion))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanJob:
    """One run of ``tmmu plan``, every option checked. ``ir``, ``page``: ``None`` where none is to be written.

    Relative outputs lie in ``folder``, wherever the model goes while it is traced.
    """

    request: ModelRequest
    folder: Path
    plan: Path
    ir: Path | None
    page: Path | None
    reserve: int
    json: bool


def plan_job(  # noqa: PLR0913 - the groups of options of one command
    text: str,
    capture: CaptureOptions,
    planning: PlanningOptions,
    token: TokenOptions,
    files: PlanCommandOptions,
    *,
    ranks: RankOptions,
    fusion: FusionOptions | None = None,
) -> PlanJob:
    """The job that the options ask for; refuses what makes no sense before anything slow starts."""
    model = parse_model(text)
    request = model_request(model, capture, planning, token, ranks=ranks, fusion=fusion)
    path = plan_path(files.output, model)
    ir = graph_output(files.ir, path)
    is_input = ir is not None and model.kind == "ir" and same_file(ir, model.path)
    if ir == path:
        raise InvalidConfig(f"--output and --ir both name {path}", fix="name two files")
    page = None if files.report is None else parse_file(files.report, "--report")
    if page is not None and page in (path, ir):
        raise InvalidConfig(f"--report names {page}, which the plan or the graph has", fix="name another file")
    return PlanJob(
        request=request,
        plan=require_writable(path, "--output", never=model.path),
        ir=None if ir is None or is_input else require_writable(ir, "--ir", never=model.path),
        page=None if page is None else require_writable(page, "--report", never=model.path),
        folder=Path.cwd(),
        reserve=parse_reserve(files.reserve),
        json=files.as_json,
    )


def run_plan(job: PlanJob) -> int:
    """Write the files together and print the summary; returns 0."""
    ranks = compile_rank_request(job.request) if job.request.is_rank_open else None
    compiled = compile_request(job.request) if ranks is None else ranks.fullest
    files = [(job.folder / job.plan, encode_plan(compiled.plan))]
    if job.ir is not None:
        files.append((job.folder / job.ir, encode_graph(compiled.graph)))
    if job.page is not None:
        files.append((job.folder / job.page, page_html(_page_contents(job, compiled, ranks))))
    write_together(files)
    _report(job, compiled, ranks)
    return 0


def _page_contents(job: PlanJob, compiled: Compiled, ranks: RankPlans | None) -> list[ReportContents]:
    """The plan; where ranks are of several kinds, those of the first, the last and the fullest rank side by side."""
    title = job.plan.name.removesuffix(PLAN_SUFFIX)
    if ranks is None or len(ranks.side_by_side) == 1:
        return [report_contents(title, compiled.plan, compiled.graph)]
    return [
        report_contents(f"{title}, ranks {ranks_text(kind.ranks)}", traced.plan, traced.graph)
        for kind, traced in ranks.side_by_side
    ]


def _report(job: PlanJob, compiled: Compiled, ranks: RankPlans | None) -> None:
    first_bytes = compiled.first_step.total_bytes if compiled.first_step else 0
    summary = summarize(compiled.plan, compiled.graph, reserve=job.reserve, first_bytes=first_bytes)
    if job.json:
        model = job.request.model
        graph = job.ir or (model.path if model.kind == "ir" else None)
        files = {"plan": str(job.plan), "ir": None if graph is None else str(graph)}
        cached = render.cache_record(compiled.cached)
        survivors = [{"bytes": count, "source": source} for count, source in compiled.survivors]
        record = {"files": files, "cache": cached, "seconds": dict(compiled.seconds)}
        traced = {"assumed": compiled.assumed, "survivors": survivors, "autocast": job.request.capture.autocast}
        timed = {"allocation_time_ns": compiled.allocation_time_ns, "scaled_updates": compiled.scaled_updates}
        kernels = {"switches": [*map(dict, compiled.switches)], "temporaries": _temporaries_record(compiled)}
        first = {"first_step": None if compiled.first_step is None else asdict(compiled.first_step)}
        page = {"report": None if job.page is None else str(job.page)}
        shown = {"ranks": rank_record(job.request.capture.world, job.request.capture.rank, ranks)}
        routed = {"routings": render.routing_records(compiled.routings)}
        print_json(asdict(summary) | record | traced | timed | kernels | first | page | shown | routed)
        return
    out = render.console()
    render.print_lines(out, rank_lines(ranks))
    render.print_summary(out, summary)
    render.print_lines(out, render.autocast_line(job.request.capture.autocast, compiled.graph.target))
    render.print_lines(out, [*render.assumed_line(compiled.assumed), *render.routing_lines(compiled.routings)])
    render.print_lines(out, render.survivors_line(compiled.survivors))
    render.print_lines(out, [*first_step_lines(compiled.first_step), *render.scaler_line(compiled.scaled_updates)])
    render.print_lines(
        out, [*render.temporaries_line(_temporaries(compiled)), *render.switches_line(compiled.switches)]
    )
    written = (str(path) for path in (job.plan, job.ir, job.page) if path)
    render.print_lines(out, [f"wrote {' and '.join(written)}"])
    render.print_origin(out, compiled)


def _temporaries(compiled: Compiled) -> KernelTemporaries | None:
    """Of a GPU's kernels: on a CPU a run counts them."""
    if compiled.graph.target != "cuda":
        return None
    names = {name for row in compiled.switches for name, _ in row}
    return kernel_temporaries(compiled.graph, deterministic=any(name.endswith(DETERMINISTIC) for name in names))


def _temporaries_record(compiled: Compiled) -> dict[str, object] | None:
    found = _temporaries(compiled)
    return None if found is None else asdict(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepJob:
    """One run of ``tmmu plan --sweep``, every option checked; sizes in bytes."""

    request: SweepRequest
    budget: int | None
    reserve: int
    jobs: int | None
    json: bool


def sweep_job(  # noqa: PLR0913 - the groups of options of one command
    text: str,
    capture: CaptureOptions,
    planning: PlanningOptions,
    token: TokenOptions,
    files: PlanCommandOptions,
    *,
    ranks: RankOptions,
) -> SweepJob:
    """The job that the options ask for; refuses what makes no sense before anything slow starts."""
    refuse(
        {"--output": files.output, "--ir": files.ir, "--report": files.report},
        "not with --sweep, which writes no plan",
        fix="leave it out, and plan the layout that you choose",
    )
    if not files.sweep and files.budget is not None:
        raise InvalidConfig("--budget goes with --sweep", fix="drop it, or use tmmu fit --budget for one layout")
    if files.fit and files.budget is None:
        raise InvalidConfig("--fit goes with --sweep and --budget", fix="say how large a device is, or use tmmu fit")
    if not files.sweep:
        raise InvalidConfig("--jobs goes with --sweep", fix="drop it: one layout is planned by one process")
    text_of_budget, reserve = files.budget, parse_reserve(files.reserve)
    budget = None if text_of_budget is None else parse_option("--budget", lambda: parse_size(text_of_budget))
    room = max(budget - reserve, 0) if files.fit and budget is not None else None
    return SweepJob(
        request=sweep_request(parse_model(text), files.sweep, capture, planning, token, ranks=ranks, room=room),
        budget=budget,
        reserve=reserve,
        jobs=require_count(files.jobs, "--jobs"),
        json=files.as_json,
    )


def run_sweep_job(job: SweepJob) -> int:
    """Plan each layout and print the table; 0 where any is planned, else the exit code of the first refusal."""
    rows = [*run_sweep(job.request, jobs=job.jobs)]
    base = job.request.base
    report = SweepReport(
        name=base.model.name,
        mode=base.plan.mode,
        device=base.capture.device,
        world=job.request.world,
        budget=job.budget,
        reserve=job.reserve,
        rows=rows,
    )
    if job.json:
        print_json(sweep_record(report))
    else:
        render.print_lines(render.console(), sweep_lines(report))
    refused = [row.error for row in rows if isinstance(row, RefusedLayout)]
    return conclude(refused[0]) if len(refused) == len(rows) else 0
