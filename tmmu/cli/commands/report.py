"""``tmmu report``: a plan as one HTML file to look at, without torch and without planning."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from tmmu.cli import options
from tmmu.cli.error_boundary import print_json
from tmmu.cli.option_groups import OptionGroup, expand_groups
from tmmu.cli.output import render
from tmmu.cli.parsing import parse_file, require_writable
from tmmu.codec.files import write_atomic
from tmmu.codec.load import PLAN_SUFFIX, ir_path, load_judged, load_plan
from tmmu.errors import InvalidConfig
from tmmu.report.contents import ReportContents, report_contents
from tmmu.report.page import page_html

app = typer.Typer(add_completion=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportCommandOptions(OptionGroup):
    """Options of ``tmmu report``."""

    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the page here. Default: NAME.html beside the plan."),
    ] = None
    ir: options.GraphFile = None
    against: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PLAN",
            help="Show this plan beside the first, on the same axes; may be repeated, as for ranks. Default: one plan.",
        ),
    ] = None
    against_ir: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Read the graph of --against here; may be repeated, in their order. Default: NAME.ir.cbor beside it.",
        ),
    ] = None
    as_json: options.Json = False


@app.command()
@expand_groups
def report(*, plan: options.PlanFile, settings: ReportCommandOptions) -> options.Run:
    """Write PLAN as one HTML file: memory over time, live bytes, the largest buffers."""
    return lambda: run_report(report_job(plan, settings))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportJob:
    """One run of ``tmmu report``, every option checked. ``plans``: each with its graph, if that was named."""

    plans: tuple[tuple[Path, Path | None], ...]
    output: Path
    json: bool


def report_job(plan: Path, settings: ReportCommandOptions) -> ReportJob:
    """The job that the options ask for; refuses an output that is an input."""
    others, graphs = settings.against or (), settings.against_ir or ()
    if len(graphs) > len(others):
        raise InvalidConfig("--against-ir is the graph of --against, which is not there", fix="name a plan with it")
    if graphs and len(graphs) < len(others):
        raise InvalidConfig(
            f"{len(others)} plans by --against and {len(graphs)} graphs by --against-ir",
            fix="name the graph of each, in the same order, or of none",
        )
    plans = ((plan, settings.ir), *zip(others, graphs or (None,) * len(others), strict=True))
    output = page_path(settings.output, plan)
    for path, ir in plans:
        require_writable(require_writable(output, "--output", never=path), "--output", never=ir_path(ir, path))
    return ReportJob(plans=plans, output=output, json=settings.as_json)


def page_path(output: str | None, plan: Path) -> Path:
    """The page's file: ``--output``, NAME.html in the folder that it names, or beside the plan."""
    name = f"{plan.name.removesuffix(PLAN_SUFFIX) or plan.name}.html"
    if output is None:
        return plan.with_name(name)
    path = parse_file(output, "--output")
    return path / name if path.is_dir() else path


def run_report(job: ReportJob) -> int:
    """Write the page; returns 0."""
    contents = [read_contents(path, ir) for path, ir in job.plans]
    page = page_html(contents)
    write_atomic(job.output, page)
    buffers = [len(plan.buffers) for plan in contents]
    if job.json:
        print_json({"page": str(job.output), "bytes": len(page), "buffers": buffers})
        return 0
    *first, last = map(str, buffers)
    count = f"{', '.join(first)} and {last}" if first else last
    render.print_lines(render.console(), [f"wrote {job.output}: {count} buffers"])
    return 0


def read_contents(path: Path, ir: Path | None) -> ReportContents:
    """What the page shows of a plan file; sound for its graph, where one was named or lies beside it."""
    plan, graph_path = load_plan(path), ir_path(ir, path)
    known = ir is not None or graph_path.exists()
    graph = load_judged(plan, graph_path, None, plan_name=str(path)) if known else None
    return report_contents(path.name.removesuffix(PLAN_SUFFIX), plan, graph)
