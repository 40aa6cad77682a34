"""``tmmu run``: run a model once inside its plan, and report its memory."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, cast

import typer

from tmmu.cli import options
from tmmu.cli.error_boundary import print_json
from tmmu.cli.option_groups import OptionGroup, expand_groups
from tmmu.cli.options import PLAN_MODES, CaptureOptions, FusionOptions, Mode, PlanningOptions, Preset, TokenOptions
from tmmu.cli.output import render
from tmmu.cli.output.progress import progress_bar
from tmmu.cli.output.run_report import lines, record
from tmmu.cli.parsing import parse_model, parse_option
from tmmu.cli.planning import ModelRequest, capture_request, model_request, names_step, quiet
from tmmu.codec.load import load_plan
from tmmu.driver import RunRequest, plan_cache, run_model
from tmmu.errors import InvalidConfig
from tmmu.ir.plan import Plan
from tmmu.planner.arenas import parse_size
from tmmu.planner.ring.prepare import RingRequest

RunModel = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="Run this model: model.py, model.py:Name, package.module:Name, hf:PATH or NAME.pt2."
    ),
]

app = typer.Typer(add_completion=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCommandOptions(OptionGroup):
    """Options of ``tmmu run`` alone."""

    seed_weights: Annotated[
        int,
        typer.Option(metavar="N", min=0, max=2**63 - 1, help="Draw weights, inputs and random operators by this seed."),
    ] = 0
    weights: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Read the weights from a safetensors file, or all in a folder. Default: random weights.",
        ),
    ] = None
    plan: Annotated[
        Path | None, typer.Option(metavar="PLAN", help="Run in this NAME.plan.cbor. Default: a new plan.")
    ] = None
    ring: Annotated[
        bool, typer.Option("--ring", help="Stream the weights through --budget. Default: they stay on the device.")
    ] = False
    budget: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Stream the weights of --ring through SIZE. Default: none.")
    ] = None
    prefetch: Annotated[
        bool, typer.Option("--prefetch/--no-prefetch", help="Copy the weights of a ring ahead of their layer.")
    ] = True
    check: Annotated[
        bool, typer.Option("--check", help="Compare with a run without a plan, and with the model itself. Default: no.")
    ] = False
    sanitize: Annotated[
        bool, typer.Option("--sanitize", help="Watch every op, and name the one that goes wrong. Default: no.")
    ] = False
    bench: Annotated[
        bool,
        typer.Option("--bench", help="Time a step and count allocations, beside eager and torch.compile. Default: no."),
    ] = False
    as_json: options.Json = False


@app.command()
@expand_groups
def run(  # noqa: PLR0913 - the groups of options of one command
    *,
    model: RunModel,
    capture: CaptureOptions,
    planning: PlanningOptions,
    fusion: FusionOptions,
    token: TokenOptions,
    settings: RunCommandOptions,
) -> options.Run:
    """Plan MODEL and run it once inside the plan, with random inputs."""
    return lambda: run_run(run_job(model, capture, planning, token, settings, fusion))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunJob:
    """One run of ``tmmu run``, every option checked."""

    request: ModelRequest
    run: RunRequest
    json: bool


def run_job(  # noqa: PLR0913, PLR0917 - the groups of options of one command
    text: str,
    capture: CaptureOptions,
    planning: PlanningOptions,
    token: TokenOptions,
    settings: RunCommandOptions,
    fusion: FusionOptions,
) -> RunJob:
    """The job that the options ask for; refuses what makes no sense before anything slow starts."""
    recorded = None if settings.plan is None else load_plan(settings.plan)
    model = parse_model(text)
    if model.kind == "ir":
        raise InvalidConfig("a graph does not say what its operators are called with", fix="run the model itself")
    if recorded is not None:
        is_step = capture.mode == "step" or (capture.mode is None and names_step(model, capture))
        capture, planning = _options_of_plan(recorded, str(settings.plan), capture, planning, is_step=is_step)
    request = model_request(model, capture, planning, token, device="cpu", fusion=fusion)
    if request.capture.mode == "step":
        _refuse_for_step(settings)
    ring = _ring_of(recorded, ring=settings.ring, budget=settings.budget)
    streams = ring is not None or (recorded is not None and recorded.ring is not None)
    if fusion.fuse and streams:
        raise InvalidConfig("--fuse: kernels read weights that stay", fix="leave it out, or run it without a ring")
    if settings.sanitize and streams:
        raise InvalidConfig("--sanitize watches weights that stay", fix="run it without a ring: the ops are the same")
    if not settings.prefetch and not streams:
        raise InvalidConfig("--no-prefetch goes with --ring", fix="give --ring --budget SIZE, or drop it")
    run_request = RunRequest(
        seed=settings.seed_weights,
        weights=None if settings.weights is None else settings.weights.absolute(),
        check=settings.check,
        sanitize=settings.sanitize,
        bench=settings.bench,
        plan=recorded,
        ring=ring,
        prefetch=settings.prefetch,
    )
    return RunJob(request=request, run=run_request, json=settings.as_json)


def _refuse_for_step(settings: RunCommandOptions) -> None:
    """``InvalidConfig`` for what is for models alone: a step makes its weights itself, and changes them."""
    for option, value in (("--weights", settings.weights), ("--ring", settings.ring)):
        if value:
            raise InvalidConfig(
                f"{option} is for a model: a step makes its own weights and changes them",
                fix="leave it out, or run the model",
            )


def _options_of_plan(
    plan: Plan, name: str, capture: CaptureOptions, planning: PlanningOptions, *, is_step: bool
) -> tuple[CaptureOptions, PlanningOptions]:
    """The options with the plan's mode and preset; ``InvalidConfig`` for another value of what the plan settles.

    The plan of a step of the user's has the mode of a training step.
    """
    mode = "step" if is_step and plan.mode == PLAN_MODES["step"] else plan.mode
    settled = {"--mode": mode, "--preset": plan.preset, "--arena": None, "--nodes": None}
    for option, value in (*capture.given_options(), *planning.given_options()):
        if option in settled and value != settled[option]:
            raise InvalidConfig(
                f"{option} does not go with --plan", fix=f"drop it: {name} says what it was planned for"
            )
    return replace(capture, mode=cast("Mode", mode)), replace(planning, preset=cast("Preset", plan.preset))


def _ring_of(plan: Plan | None, *, ring: bool, budget: str | None) -> RingRequest | None:
    """The ring that ``--ring --budget SIZE`` asks for."""
    if not ring and budget is None:
        return None
    if not ring or budget is None:
        raise InvalidConfig("--ring and --budget go together", fix="give --ring --budget SIZE")
    if plan is not None:
        raise InvalidConfig("--ring does not go with --plan", fix="plan with tmmu ring, whose plan has its ring in it")
    return RingRequest(capacity=parse_option("--budget", lambda: parse_size(budget)))


def run_run(job: RunJob) -> int:
    """Run the model and print the report; returns 0."""
    with quiet(), progress_bar() as progress:
        progress("importing torch", 0)
        capture = capture_request(job.request)
        cache = plan_cache(reverify=True) if job.request.cache else None
        compiled, report = run_model(capture, job.request.plan, job.run, progress, cache=cache)
    if job.json:
        print_json(record(compiled, report) | {"autocast": capture.autocast})
        return 0
    out = render.console()
    render.print_lines(out, lines(compiled, report, job.run, model_file=job.request.model.path.name))
    render.print_lines(out, render.autocast_line(capture.autocast, capture.device))
    render.print_origin(out, compiled)
    return 0
