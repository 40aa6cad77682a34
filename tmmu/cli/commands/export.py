"""``tmmu export``: a plan as a file that another tool reads, without torch and without planning."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from tmmu.cli import options
from tmmu.cli.error_boundary import print_json
from tmmu.cli.option_groups import OptionGroup, expand_groups
from tmmu.cli.output.render import console, print_lines
from tmmu.cli.parsing import parse_file, require_writable
from tmmu.codec.files import is_special, write_atomic
from tmmu.codec.load import PLAN_SUFFIX, ir_path, load_judged, load_plan
from tmmu.errors import InvalidConfig
from tmmu.export.formats import FORMATS
from tmmu.export.memory_viz import EAGER
from tmmu.ir.graph import Graph
from tmmu.ir.plan import Plan

app = typer.Typer(add_completion=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportCommandOptions(OptionGroup):
    """Options of ``tmmu export``."""

    to: Annotated[Literal["perfetto", "memory_viz", "csv", "json"], typer.Option(help="Write this format.")]
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write it here. Default: NAME and the format's ending, beside PLAN."
        ),
    ] = None
    run: Annotated[
        Literal["planned", "eager"] | None,
        typer.Option(
            help="Write the plan's stack, or what the model holds run as it is; for memory_viz. Default: planned."
        ),
    ] = None
    ir: options.GraphFile = None
    as_json: options.Json = False


@app.command()
@expand_groups
def export(*, plan: options.PlanFile, settings: ExportCommandOptions) -> options.Run:
    """Write PLAN as a file that another tool reads."""
    return lambda: run_export(export_job(plan, settings))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportJob:
    """One run of ``tmmu export``, every option checked."""

    plan: Path
    ir: Path
    needs_graph: bool
    to: str
    run: str
    output: Path
    json: bool


def export_job(plan: Path, settings: ExportCommandOptions) -> ExportJob:
    """The job that the options ask for; the output is neither the plan nor its graph."""
    kind = FORMATS[settings.to]
    run = settings.run or kind.runs[0]
    if run not in kind.runs:
        raise InvalidConfig(f"--run {run}: {settings.to} shows both runs", fix="leave it out")
    ir = ir_path(settings.ir, plan)
    output = _output_path(plan, settings.output, ("." + run if run == EAGER else "") + kind.suffix)
    for source in (plan, ir):
        require_writable(output, "--output", never=source)
    return ExportJob(
        plan=plan,
        ir=ir,
        needs_graph=settings.ir is not None,
        to=settings.to,
        run=run,
        output=output,
        json=settings.as_json,
    )


def _output_path(plan: Path, text: str | None, suffix: str) -> Path:
    """``text`` as a path, or a name of its own in that folder, or in the plan's."""
    name = plan.name.removesuffix(PLAN_SUFFIX) + suffix
    if text is None:
        return plan.with_name(name)
    path = parse_file(text, "--output")
    return path / name if path.is_dir() else path


def run_export(job: ExportJob) -> int:
    """Write the file and say so; returns 0. The plan is judged where its graph is there."""
    plan = load_plan(job.plan)
    content = FORMATS[job.to].encode(plan, _graph_of(job, plan), job.run)
    write_atomic(job.output, content)
    if job.json:
        print_json({"to": job.to, "run": job.run, "output": str(job.output), "bytes": len(content)})
    elif not is_special(job.output):
        print_lines(console(), [f"wrote {job.output}, for {FORMATS[job.to].reader}"])
    return 0


def _graph_of(job: ExportJob, plan: Plan) -> Graph | None:
    if not job.needs_graph and not job.ir.exists():
        return None
    return load_judged(plan, job.ir, None, plan_name=str(job.plan))
