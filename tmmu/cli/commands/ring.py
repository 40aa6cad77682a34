"""``tmmu ring``: a schedule that streams a model's weights through a budget, the time of a pass, its limit."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from tmmu.cli import options
from tmmu.cli.error_boundary import print_json
from tmmu.cli.option_groups import OptionGroup, expand_groups
from tmmu.cli.options import CaptureOptions, PlanningOptions, TokenOptions
from tmmu.cli.output import render
from tmmu.cli.output.ring_report import lines, record, report_of
from tmmu.cli.parsing import graph_output, parse_model, parse_option, plan_path, refuse, require_writable
from tmmu.cli.planning import ModelRequest, compile_request, model_request
from tmmu.codec.files import write_together
from tmmu.driver import with_ring
from tmmu.errors import InvalidConfig
from tmmu.ir.graph import encode_graph
from tmmu.ir.plan import encode_plan
from tmmu.planner.arenas import parse_size
from tmmu.planner.ring.prepare import RingRequest
from tmmu.planner.ring.profile import Profile, parse_rate

app = typer.Typer(add_completion=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RingCommandOptions(OptionGroup):
    """Options of ``tmmu ring`` alone."""

    budget: Annotated[
        str,
        typer.Option(metavar="SIZE", help="Give weights this much of the device, for example 18GiB. Must be given."),
    ]
    policy: Annotated[
        Literal["cyclic", "skip_end", "slots", "double"],
        typer.Option(help="Choose by this policy which weights stay, and where the others land."),
    ] = "cyclic"
    depth: Annotated[
        int, typer.Option(metavar="N", min=0, max=1 << 16, help="Issue copies at least N layers ahead of their own.")
    ] = 0
    device_link: Annotated[
        str | None,
        typer.Option(metavar="RATE", help="Assume this bandwidth from host to device. Default: 24GB/s."),
    ] = None
    copy_cost: Annotated[
        int,
        typer.Option(metavar="NS", min=0, max=10**9, help="Assume NS nanoseconds for each copy beside its bytes."),
    ] = 10_000
    device_flops: Annotated[
        str | None, typer.Option(metavar="RATE", help="Assume this arithmetic of the device. Default: 150TFLOP/s.")
    ] = None
    device_memory: Annotated[
        str | None,
        typer.Option(metavar="RATE", help="Assume this bandwidth of the device's memory. Default: 1.5TB/s."),
    ] = None
    simulate: Annotated[bool, typer.Option("--simulate", help="Print one steady pass, copy by copy. Default: no.")] = (
        False
    )
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the plan here, its ring in it. Default: nowhere."),
    ] = None
    ir: options.GraphOutput = None
    as_json: options.Json = False


@app.command()
@expand_groups
def ring(
    *,
    model: options.Model,
    stream: RingCommandOptions,
    capture: CaptureOptions,
    planning: PlanningOptions,
    token: TokenOptions,
) -> options.Run:
    """Stream MODEL's weights through a budget: the schedule, the time of a pass, and what limits it."""
    return lambda: run_ring(ring_job(model, capture, planning, token, stream))


@dataclass(frozen=True, slots=True, kw_only=True)
class RingJob:
    """One run of ``tmmu ring``, every option checked. Files are written where ``plan`` names one."""

    request: ModelRequest
    ring: RingRequest
    folder: Path
    plan: Path | None
    ir: Path | None
    simulate: bool
    json: bool


def ring_job(
    text: str, capture: CaptureOptions, planning: PlanningOptions, token: TokenOptions, stream: RingCommandOptions
) -> RingJob:
    """The job that the options ask for; refuses what makes no sense before anything slow starts."""
    model = parse_model(text)
    request = model_request(model, capture, planning, token)
    output = stream.output
    plan = None if output is None else require_writable(plan_path(output, model), "--output", never=model.path)
    if plan is None:
        refuse({"--ir": stream.ir}, "only with --output", fix="name a plan with --output, or leave it out")
    graph = None if plan is None else graph_output(stream.ir, plan)
    return RingJob(
        request=request,
        ring=RingRequest(
            capacity=_budget(stream.budget), policy=stream.policy, depth=stream.depth, profile=_profile(stream)
        ),
        folder=Path.cwd(),
        plan=plan,
        ir=None if graph is None else require_writable(graph, "--ir", never=model.path),
        simulate=stream.simulate,
        json=stream.as_json,
    )


def _profile(stream: RingCommandOptions) -> Profile:
    rates = {
        "link": _rate("--device-link", stream.device_link, "B"),
        "flops": _rate("--device-flops", stream.device_flops, "FLOP"),
        "memory": _rate("--device-memory", stream.device_memory, "B"),
    }
    return Profile(copy_ns=stream.copy_cost, **{name: rate for name, rate in rates.items() if rate is not None})


def _rate(option: str, text: str | None, unit: str) -> int | None:
    return None if text is None else parse_option(option, lambda: parse_rate(text, unit))


def _budget(text: str) -> int:
    size = parse_option("--budget", lambda: parse_size(text))
    if not size:
        raise InvalidConfig("--budget: 0 holds nothing", fix="give a size, such as 18GiB")
    return size


def run_ring(job: RingJob) -> int:
    """Print the schedule, and write it with its plan if a file is named; returns 0."""
    compiled = compile_request(job.request)
    streamed = with_ring(compiled, job.ring, token=job.request.plan.token)
    if job.plan is not None:
        files = [(job.folder / job.plan, encode_plan(streamed.plan))]
        if job.ir is not None:
            files.append((job.folder / job.ir, encode_graph(streamed.graph)))
        write_together(files)
    report = report_of(streamed, job.ring, simulated=job.simulate)
    written = [str(path) for path in (job.plan, job.ir) if path]
    if job.json:
        names = {"plan": job.plan, "ir": job.ir}
        print_json(record(report) | {"files": {name: path and str(path) for name, path in names.items()}})
        return 0
    out = render.console()
    render.print_lines(out, [*lines(report), *([f"wrote {' and '.join(written)}"] if written else [])])
    return 0
